// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func presetsOfHostileImages() {
	It("changes and executes nothing of the node for images that try to have it so", later("a collection of hostile images takes minutes"),
		ofNode, hostileImages)
}

// victim is the directory of the GPU node that hostile images lead to. Everybody may write there.
const victim = "/mnt/disks/victim"

// leavesMark says that it ran, where it is and where everybody looks.
const leavesMark = `#include <fcntl.h>
int main(void) {
	const char *marks[] = {"/ran", "ran", "` + victim + `/ran"};
	for (int i = 0; i < 3; i++) open(marks[i], O_CREAT | O_WRONLY, 0666);
	return 0;
}`

// hostile is an image that tries something, and what becomes of a pod of it.
type hostile struct {
	name string
	// Tries are put over a glibc image, or a musl image.
	tries []tarFile
	musl  bool
	// refused is what the pod's Event says; empty where the pod runs and finds the library.
	refused string
	pod     []func(*corev1.Pod)
}

// hostileAttempts has one of each kind that pkg/hook knows of, for what only a real runtime and a real host can show.
func hostileAttempts(mark []byte) []hostile {
	const (
		dropIns = "etc/ld.so.conf.d"
		own     = "opt/own"
		nowhere = "/etc/ld.so.conf.d is a link of the image that leads nowhere"
		byRunc  = "too many levels of symbolic links" // The runtime mounts there itself, before any hook.
	)
	fifo := tarFile{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "etc/ld.so.conf", Mode: 0o644}}
	ownPath := func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PATH", Value: "/" + own + ":/bin"}}
	}
	return []hostile{
		{name: "link-to-own", tries: []tarFile{
			symlink(dropIns, victim+"/conf.d"), regular(strings.TrimPrefix(victim, "/")+"/conf.d/own.conf", []byte("/opt\n")),
		}},
		{name: "link-to-host", tries: []tarFile{symlink(dropIns, victim+"/conf.d")}, refused: nowhere},
		{name: "link-with-dots", tries: []tarFile{symlink(dropIns, strings.Repeat("../", 12)+victim[1:]+"/conf.d")}, refused: nowhere},
		{
			name: "link-through-proc", tries: []tarFile{symlink(dropIns, "/proc/self/root/.."+victim+"/conf.d")},
			refused: "/etc/ld.so.conf.d: invalid cross-device link: a volume or another mount is in the way",
		},
		{name: "etc-through-proc", tries: []tarFile{symlink("etc", "/proc/self/cwd/.."+victim+"/etc")}, refused: byRunc},
		{name: "fifo", tries: []tarFile{fifo}, refused: "/etc/ld.so.conf: is not a regular file but a pipe"},
		{
			name: "huge", tries: []tarFile{regular("etc/ld.so.conf", bytes.Repeat([]byte("/opt\n"), 1<<20))},
			refused: "/etc/ld.so.conf: is too large: more than 1048576 bytes",
		},
		{name: "files-as-links", tries: []tarFile{
			symlink("etc/ld.so.cache", victim+"/ld.so.cache"), symlink("etc/ld.so.conf", victim+"/ld.so.conf"),
		}},
		{name: "musl-path-as-link", musl: true, tries: []tarFile{
			symlink("etc/ld-musl-x86_64.path", victim+"/path"), symlink("etc/ld-musl-aarch64.path", victim+"/path"),
		}},
		{name: "directories-as-links", tries: []tarFile{symlink("usr/local", victim), symlink("usr/bin", victim+"/bin")}},
		{name: "local-through-proc", tries: []tarFile{symlink("usr/local", "/proc/self/root/.."+victim)}, refused: byRunc},
		{name: "own-programs", pod: []func(*corev1.Pod){ownPath}, tries: append(busybox(own),
			regular("bin/sh", mark), regular("sbin/ldconfig", mark), regular("usr/sbin/ldconfig.real", mark),
			symlink("usr/sbin/ldconfig", victim+"/ldconfig"), symlink("usr/bin/sh", victim+"/ldconfig"))},
		{name: "read-only", pod: []func(*corev1.Pod){readOnlyRoot}},
		{name: "user", pod: []func(*corev1.Pod){asUser}},
		{name: "user-namespace", pod: []func(*corev1.Pod){userNamespace}},
		{
			name: "all-at-once", pod: []func(*corev1.Pod){asUser, readOnlyRoot, userNamespace},
			tries: []tarFile{symlink("etc/ld.so.cache", victim+"/ld.so.cache"), symlink("usr/local", victim)},
		},
	}
}

// newVictim makes the directory on the GPU node.
func newVictim(mark []byte) {
	GinkgoHelper()
	at := filepath.Join(h.MachineDir(gpuNode), victim)
	DeferCleanup(func() { Expect(os.RemoveAll(at)).To(Succeed()) })
	for _, dir := range []string{"", "conf.d", "etc", "bin"} {
		Expect(os.MkdirAll(filepath.Join(at, dir), 0o777)).To(Succeed())
		Expect(os.Chmod(filepath.Join(at, dir), 0o777)).To(Succeed())
	}
	for file, content := range map[string]string{"ld.so.conf": "/opt\n", "ld.so.cache": "", "path": "/lib\n", "conf.d/host.conf": "/opt\n"} {
		Expect(os.WriteFile(filepath.Join(at, file), []byte(content), 0o666)).To(Succeed())
	}
	Expect(os.WriteFile(filepath.Join(at, "ldconfig"), mark, 0o755)).To(Succeed())
}

// hostTree lists what the images aim at, as the GPU node's host has it: path, type, mode, owner, size, times of content and inode, target;
// and what is in files that are small.
func hostTree(ctx context.Context) []string {
	GinkgoHelper()
	const script = `set -e
find /etc /usr/local /usr/bin /usr/sbin /var/lib/fettle/hooks "$1" -xdev -printf '%p %y %m %U:%G %s %T@ %C@ %l\n' | sort
find /etc "$1" -xdev -type f -size -64k -exec sha256sum {} + | sort`
	out, err := h.OnNode(ctx, gpuNode, "sh", "-c", script, "sh", victim)
	Expect(err).NotTo(HaveOccurred())
	return lines(out)
}

func hostileImages(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	w := newWorkshop()
	onGPUNode("lib/libfakecuda.so.1.2", string(w.library(ctx, "libfakecuda", fakeCUDA)), 0o644)
	onGPUNode("bin/fake-smi", "#!/bin/sh\n", 0o755)
	newClusterPreset(ctx, ns, "e2e-hostile", func(r *v1alpha1.PresetRules) {
		r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libfakecuda.so.*"}, Directories: []string{presetFiles + "/lib"}}}
		r.Tools = []v1alpha1.PresetFiles{{Names: []string{"fake-smi"}, Directories: []string{presetFiles + "/bin"}}}
	})
	w.write("mark.c", leavesMark)
	w.run(ctx, "musl-gcc", "-static", "-o", "mark", "mark.c")
	mark := w.read("mark")
	attempts := hostileAttempts(mark)
	loadHostile(ctx, w, attempts)
	newVictim(mark)
	newClaim(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	before := hostTree(ctx)
	pods := map[string]*corev1.Pod{}
	for _, a := range attempts {
		pods[a.name] = newPod(ctx, ns, a.name, append([]func(*corev1.Pod){withClaim("gpu"), onNode(gpuNode), func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = hostileImage(a.name)
		}}, a.pod...)...)
	}
	for _, a := range attempts {
		if a.refused != "" {
			say("%s: the pod's Event says why it does not start", a.name)
			eventuallyEvent(ctx, ns, "Pod", a.name, "Failed", a.refused)
			continue
		}
		say("%s: the pod runs, and has the node's library", a.name)
		running(ctx, pods[a.name])
		Expect(inside(ctx, pods[a.name], main, "/bin/uses; [ ! -e /ran ]; echo $?")).To(Equal("the node's CUDA\n0\n"), a.name)
	}
	Expect(hostTree(ctx)).To(Equal(before))

	say("what the images would have run does leave a mark, and a mark on the host would be seen")
	Expect(inside(ctx, pods["own-programs"], main, "/sbin/ldconfig; [ ! -e /ran ]; echo $?")).To(Equal("1\n"))
	_, err := h.OnNode(ctx, gpuNode, "touch", victim+"/ran")
	Expect(err).NotTo(HaveOccurred())
	Expect(hostTree(ctx)).To(ContainElement(HavePrefix(victim + "/ran ")))
}

func hostileImage(name string) string { return "fettle.dev/test/hostile-" + name + ":1" }

// loadHostile gives the nodes the images.
func loadHostile(ctx context.Context, w workshop, attempts []hostile) {
	GinkgoHelper()
	w.write("main.c", usesCUDA)
	programs := map[bool][]tarFile{}
	for musl, compiler := range map[bool]string{false: "gcc", true: "musl-gcc"} {
		w.run(ctx, compiler, "-o", compiler+"-uses", "main.c", "-L.", "-l:libfakecuda.so")
		programs[musl] = append(busybox("bin"), dynamic("bin/uses", w.at(compiler+"-uses"))...)
	}
	var images []builtImage
	for _, a := range attempts {
		images = append(images, builtImage{ref: hostileImage(a.name), files: programs[a.musl], over: a.tries})
	}
	loadImages(ctx, images...)
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/fettle-dev/fettle/test/hardware"
)

// otherRuntimes are those that make targets install from Debian. They read what the plugin writes with code of their own.
func otherRuntimes() {
	It("gives GPUs to pods that crun starts, and keeps other GPUs out of their reach", underCrun)
	It("describes GPUs so that podman starts a container with one by its CDI name", underPodman)
}

// needs fails where a program of Debian is missing, which make has installed.
func needs(program string) {
	GinkgoHelper()
	_, err := exec.LookPath(program)
	Expect(err).NotTo(HaveOccurred(), "run make test-e2e, which installs Debian's %s", program)
}

func underCrun(ctx SpecContext) {
	needs("crun")
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-crun"}, Handler: "crun"}
	_, err := h.Kube.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(h.Kube.NodeV1().RuntimeClasses().Delete(ctx, class.Name, metav1.DeleteOptions{})).To(Succeed())
	})
	denyOthers(ctx, func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class.Name })

	say("a directory of the node, at the claim's own path")
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "placed", placedDisk())
	pod := newPod(ctx, ns, "disk", withTemplate("placed"), onNode(gpuNode), func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class.Name })
	running(ctx, pod)
	Expect(inside(ctx, pod, main, `grep -c " /data/fast " /proc/self/mountinfo`)).To(Equal("1\n"))
	now, err := h.Kube.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	id := strings.TrimPrefix(now.Status.ContainerStatuses[0].ContainerID, "containerd://")
	state, err := h.OnNode(ctx, gpuNode, "ls", "/run/containerd/runc/k8s.io/"+id)
	Expect(err).NotTo(HaveOccurred())
	Expect(lines(state)).To(ContainElement("status"), "crun's file; runc's is state.json")
}

// podmanDir is where podman keeps its files on a node, and the container's root is.
const podmanDir = "/run/e2e-podman"

func underPodman(ctx SpecContext) {
	needs("podman")
	device, want := describedGPU(ctx)
	say("podman starts a container with device %s", device)
	ctr := filepath.Join(h.Cache, "bin", "ctr") + " --address /run/containerd/containerd.sock --namespace k8s.io images"
	root := podmanDir + "/root"
	_, err := h.OnNode(ctx, gpuNode, "sh", "-c", fmt.Sprintf("mkdir -p %s && %s mount --rw %s %[1]s", root, ctr, image))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := h.OnNode(ctx, gpuNode, "sh", "-c", fmt.Sprintf("%s unmount --rm %s; rm -rf %s/storage %[3]s/run", ctr, root, podmanDir))
		Expect(err).NotTo(HaveOccurred())
	})
	run := []string{
		// crun refuses a machine with cgroups of both versions.
		"unshare", "--mount", "sh", "-c", `umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"`, "sh",
		"podman", "--root", podmanDir + "/storage", "--runroot", podmanDir + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
		"--runtime", "crun", "run", "--rm", "--network", "none", "--cgroups", "disabled", "--ulimit", "nofile=1024:1024",
		"--ulimit", "nproc=1024:1024", "--device", device, "--rootfs", root, "sh", "-c", listNodes,
	}
	out, err := h.OnNode(ctx, gpuNode, run...)
	Expect(err).NotTo(HaveOccurred())
	Expect(lines(out)).To(Equal(want))

	say("a name that no file has is refused")
	run[slices.Index(run, device)] = "fettle.dev/common=nothing"
	_, err = h.OnNode(ctx, gpuNode, run...)
	Expect(err).To(MatchError(ContainSubstring("fettle.dev/common=nothing")))
}

// describedGPU is the CDI name of a GPU of the GPU node in the plugin's files, with the device nodes that it stands for.
func describedGPU(ctx context.Context) (name string, nodes []string) {
	GinkgoHelper()
	out, err := h.OnNode(ctx, gpuNode, "sh", "-c", `for f in /var/run/cdi/*fettle.dev*.json; do tr -d '\n' < "$f"; echo; done`)
	Expect(err).NotTo(HaveOccurred())
	devices := hardwareOf(gpuNode).Devices
	wanted, err := devices[slices.IndexFunc(devices, func(d hardware.Device) bool { return d.Kind == "gpu" })].Nodes(h.MachineDir(gpuNode))
	Expect(err).NotTo(HaveOccurred())
	for _, n := range wanted {
		nodes = append(nodes, n.String())
	}
	for _, text := range lines(out) {
		var s specs.Spec
		Expect(json.Unmarshal([]byte(text), &s)).To(Succeed())
		for _, d := range s.Devices {
			var paths []string
			for _, n := range slices.Concat(s.ContainerEdits.DeviceNodes, d.ContainerEdits.DeviceNodes) {
				paths = append(paths, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
			}
			if slices.Sort(paths); slices.Equal(paths, nodes) {
				return s.Kind + "=" + d.Name, nodes
			}
		}
	}
	Fail(fmt.Sprintf("no CDI file describes a device with %v:\n%s", nodes, out))
	return "", nil
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/objects"
)

func lendsDirectories() {
	It("mounts a local SSD, and empties it before another claim gets it", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "ssd", spec(request("ssd", hostClass, where(onProduct("solo")))))
		first := newPod(ctx, ns, "first", withTemplate("ssd"), asUser)
		running(ctx, first)
		Expect(results(onlyClaim(ctx, first))[0].Device).To(Equal("solo-ssd2"))
		inside(ctx, first, main, `cd /scratch/ssd2 && mkdir -p deep/er && echo secret > deep/er/file && echo secret > .hidden && ln -s / out`)

		say("nothing can be deleted for a while: the disk is unpublished, and the next pod waits")
		pinned := filepath.Join(h.MachineDir(gpuNode), "mnt/disks/ssd2/deep/er/file")
		pin(ctx, pinned)
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, first)
		eventuallyPublished(ctx, gpuNode+"/host", "kept-ssd3", "ssd-ssd0", "ssd-ssd1")
		eventuallyWithheld(ctx, 1)
		second := newPod(ctx, ns, "second", withTemplate("ssd"))
		eventuallyUnschedulable(ctx, second, "cannot allocate")
		Expect(onDisk(ctx, "ssd2")).To(HaveEach(HavePrefix(".fettle-trash-")), "what the claim wrote is aside at once")

		say("deletion can go on: the disk comes back, and the next pod finds it empty")
		unpin(ctx, filepath.Dir(filepath.Dir(filepath.Dir(pinned))))
		running(ctx, second)
		eventuallyWithheld(ctx, 0)
		Expect(inside(ctx, second, main, "ls -A /scratch/ssd2; touch /scratch/ssd2/mine && ls -A /scratch/ssd2")).To(Equal("mine\n"))

		say("a pod that waits for the disk gets it empty too")
		third := newPod(ctx, ns, "third", withTemplate("ssd"))
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, second.Name, metav1.DeleteOptions{})).To(Succeed())
		running(ctx, third)
		Expect(inside(ctx, third, main, "ls -A /scratch/ssd2")).To(BeEmpty())
	})

	It("keeps what a claim wrote where the class says onRelease: Keep", later("scenario 09 of the demo shows it"),
		ofNode, func(ctx SpecContext) {
			ns := newNamespace(ctx, nil)
			newClass(ctx, "kept.example.com", hostClass, objects.Config("fettle.dev", config("HostConfig", `"policy":{"onRelease":"Keep"}`)))
			newTemplate(ctx, ns, "ssd", spec(request("ssd", "kept.example.com", where(onProduct("kept")))))
			first := newPod(ctx, ns, "first", withTemplate("ssd"))
			running(ctx, first)
			inside(ctx, first, main, "echo kept > /scratch/ssd3/file")
			second := newPod(ctx, ns, "second", withTemplate("ssd"))
			Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
			running(ctx, second)
			Expect(inside(ctx, second, main, "cat /scratch/ssd3/file")).To(Equal("kept\n"))
		})

	It("gives each claim its own disk, which the other does not see", later("a claim's disk is emptied in the first tier"),
		ofNode, func(ctx SpecContext) {
			ns := newNamespace(ctx, nil)
			newTemplate(ctx, ns, "ssd", spec(request("ssd", hostClass, where(onProduct("ssd")))))
			pods := []*corev1.Pod{newPod(ctx, ns, "one", withTemplate("ssd")), newPod(ctx, ns, "two", withTemplate("ssd"))}
			running(ctx, pods...)
			var mounts []string
			for _, p := range pods {
				inside(ctx, p, main, "cd /mnt/ssd/* && echo "+p.Name+" > name")
				mounts = append(mounts, strings.TrimSpace(inside(ctx, p, main, "ls /mnt/ssd")))
			}
			Expect(mounts).To(ConsistOf("ssd0", "ssd1"))
			for _, p := range pods {
				Expect(inside(ctx, p, main, "cat /mnt/ssd/*/name")).To(Equal(p.Name + "\n"))
			}
		})

	It("keeps the directories of two namespaces apart while they are renamed, covered, mounted twice and full",
		later("unit tests and chaos show each by itself"), ofNode, keepsApart, SpecTimeout(h.Patient(faultLimit)))
}

// keepsApart changes what the paths of directories lead to while pods of two namespaces have them.
func keepsApart(ctx SpecContext) {
	one, other := lent(ctx), lent(ctx)
	whole := func(l *borrower) {
		GinkgoHelper()
		Expect(inside(ctx, l.pod, main, "cat /mnt/ssd/*/file")).To(Equal(l.pod.Namespace + "\n"))
	}

	say("the directories have each other's name: a claim ends only when its own is back")
	exchange := func() {
		GinkgoHelper()
		Expect(unix.Renameat2(unix.AT_FDCWD, one.path(), unix.AT_FDCWD, other.path(), unix.RENAME_EXCHANGE)).To(Succeed())
	}
	exchange()
	whole(one)
	whole(other)
	one.leave(ctx)
	one.cannotEnd(ctx)
	whole(other)
	Expect(onDisk(ctx, one.disk)).To(ConsistOf("file"), "it is the other's directory")
	exchange()
	eventuallyGone(ctx, one.pod)
	Eventually(func() []string { return onDisk(ctx, one.disk) }).Should(BeEmpty())
	whole(other)

	say("another directory is mounted over one: it is not emptied")
	onNodeDo(ctx, "mount -t tmpfs cover /mnt/disks/"+other.disk+" && touch /mnt/disks/"+other.disk+"/foreign")
	other.leave(ctx)
	other.cannotEnd(ctx)
	Expect(onDisk(ctx, other.disk)).To(ConsistOf("foreign"))
	onNodeDo(ctx, "umount /mnt/disks/"+other.disk)
	eventuallyGone(ctx, other.pod)
	Eventually(func() []string { return onDisk(ctx, other.disk) }).Should(BeEmpty())

	say("a directory that is mounted at a second path is published by neither")
	eventuallyPublished(ctx, gpuNode+"/host", "kept-ssd3", "solo-ssd2", "ssd-ssd0", "ssd-ssd1")
	onNodeDo(ctx, "mount --bind /mnt/disks/ssd0 /mnt/disks/ssd1")
	eventuallyPublished(ctx, gpuNode+"/host", "kept-ssd3", "solo-ssd2")
	onNodeDo(ctx, "umount /mnt/disks/ssd1")
	eventuallyPublished(ctx, gpuNode+"/host", "kept-ssd3", "solo-ssd2", "ssd-ssd0", "ssd-ssd1")

	say("a claim that fills its disk leaves it empty")
	onNodeDo(ctx, "mount -t tmpfs -o size=1m,nr_inodes=64 small /mnt/disks/ssd2")
	DeferCleanup(func(ctx SpecContext) { onNodeDo(ctx, "umount -l /mnt/disks/ssd2") })
	for range 2 {
		ns := newNamespace(ctx, nil)
		newTemplate(ctx, ns, "ssd", spec(request("ssd", hostClass, where(onProduct("solo")))))
		pod := newPod(ctx, ns, "full", withTemplate("ssd"))
		running(ctx, pod)
		const fill = `cd /scratch/ssd2 && ls -A; dd if=/dev/zero of=big bs=64k 2>/dev/null
			i=0; while touch $i 2>/dev/null; do i=$((i+1)); done; echo full`
		Expect(inside(ctx, pod, main, fill)).To(Equal("full\n"))
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		eventuallyGone(ctx, pod)
		Eventually(func() []string { return onDisk(ctx, "ssd2") }).Should(BeEmpty())
	}
}

// borrower is a pod of a namespace of its own to which one of the two alike disks is lent, with a file in it.
type borrower struct {
	pod  *corev1.Pod
	disk string
}

func lent(ctx context.Context) *borrower {
	GinkgoHelper()
	ns := newNamespace(ctx, nil)
	newTemplate(ctx, ns, "ssd", spec(request("ssd", hostClass, where(onProduct("ssd")))))
	b := &borrower{pod: newPod(ctx, ns, "borrower", withTemplate("ssd"), onNode(gpuNode))}
	running(ctx, b.pod)
	b.disk = strings.TrimPrefix(results(onlyClaim(ctx, b.pod))[0].Device, "ssd-")
	inside(ctx, b.pod, main, "cd /mnt/ssd/* && echo "+ns+" > file")
	return b
}

// path is that of the disk on the machine.
func (b *borrower) path() string { return filepath.Join(h.MachineDir(gpuNode), "mnt/disks", b.disk) }

func (b *borrower) leave(ctx context.Context) {
	GinkgoHelper()
	Expect(h.Kube.CoreV1().Pods(b.pod.Namespace).Delete(ctx, b.pod.Name, metav1.DeleteOptions{})).To(Succeed())
}

// cannotEnd waits until the administrator is told that the claim's directory is not there.
func (b *borrower) cannotEnd(ctx context.Context) {
	GinkgoHelper()
	eventuallyEvent(ctx, metav1.NamespaceDefault, "Node", gpuNode, "DeviceQuarantined", "claim "+b.pod.Namespace+"/")
}

// onNodeDo runs a script on the GPU node.
func onNodeDo(ctx context.Context, script string) {
	GinkgoHelper()
	_, err := h.OnNode(ctx, gpuNode, "sh", "-c", script)
	Expect(err).NotTo(HaveOccurred())
}

func asUser(p *corev1.Pod) {
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000)), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// pin makes a file impossible to delete, as one on a disk that hangs.
func pin(ctx context.Context, path string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, "chattr", "+i", path).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	DeferCleanup(func(ctx SpecContext) { unpin(ctx, filepath.Dir(filepath.Dir(filepath.Dir(path)))) })
}

// unpin takes it back for everything below a directory, wherever it was moved.
func unpin(ctx context.Context, dir string) {
	out, err := exec.CommandContext(ctx, "chattr", "-R", "-f", "-i", dir).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
}

// onDisk lists a disk of the GPU node as its host sees it.
func onDisk(ctx context.Context, name string) []string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, gpuNode, "ls", "-A", "/mnt/disks/"+name)
	Expect(err).NotTo(HaveOccurred())
	return lines(out)
}

// eventuallyWithheld waits until a node says how many of its directories it keeps back.
func eventuallyWithheld(ctx context.Context, want int32) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		for _, pool := range node.Status.Pools {
			if pool.Kind == "host" {
				g.Expect(pool.Withheld).To(Equal(want))
			}
		}
	}).Should(Succeed())
}

// eventuallyPublished waits until a pool holds exactly some devices.
func eventuallyPublished(ctx context.Context, pool string, devices ...string) {
	GinkgoHelper()
	Expect(h.Poll(ctx, "the slices of pool "+pool, soon, func(ctx context.Context) error {
		published, err := poolDevices(ctx, pool)
		if err != nil {
			return err
		}
		names := []string{}
		for _, d := range published {
			names = append(names, d.Name)
		}
		if equal, _ := ConsistOf(devices).Match(names); !equal {
			return fmt.Errorf("has %v, want %v", names, devices)
		}
		return nil
	})).To(Succeed())
}

// poolSlices are the slices of one pool.
func poolSlices(ctx context.Context, pool string) ([]resourceapi.ResourceSlice, error) {
	list, err := h.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=fettle.dev"})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	var out []resourceapi.ResourceSlice
	for i := range list.Items {
		if list.Items[i].Spec.Pool.Name == pool {
			out = append(out, list.Items[i])
		}
	}
	return out, nil
}

// poolDevices are the devices of one pool.
func poolDevices(ctx context.Context, pool string) ([]resourceapi.Device, error) {
	found, err := poolSlices(ctx, pool)
	var out []resourceapi.Device
	for i := range found {
		out = append(out, found[i].Spec.Devices...)
	}
	return out, err
}

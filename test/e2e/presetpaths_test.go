// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// teamFiles is the directory of the nodes that namespaces may use; what is in its directory own they may write to.
const teamFiles = "/mnt/disks/teams"

// readOnlyFiles lies in what they may write to, and is for reading.
const readOnlyFiles = teamFiles + "/own/own"

// newPodPreset is a namespace's, for pods with its name as their label.
func newPodPreset(ctx context.Context, namespace, name string, mounts ...v1alpha1.PresetMount) {
	GinkgoHelper()
	create(ctx, "devicepresets", namespace, presetOfPods(namespace, name, mounts...))
}

func presetOfPods(namespace, name string, mounts ...v1alpha1.PresetMount) *v1alpha1.DevicePreset {
	preset := &v1alpha1.DevicePreset{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindDevicePreset},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}
	preset.Spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpuClass}}
	preset.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"preset": name}}
	preset.Spec.Mounts = mounts
	return preset
}

// labelled is a pod that a preset is for.
func labelled(preset string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"preset": preset} }
}

// ofTeams is a path of the GPU node as this machine sees it. What is there goes with the spec; the plugins hold the directories themselves.
func ofTeams(name string) string {
	GinkgoHelper()
	dir := filepath.Join(h.MachineDir(gpuNode), teamFiles)
	DeferCleanup(func() {
		for _, dir := range []string{dir + "/own", dir} {
			entries, err := os.ReadDir(dir)
			Expect(err).NotTo(HaveOccurred())
			for _, entry := range entries {
				if entry.Name() != "own" {
					Expect(os.RemoveAll(filepath.Join(dir, entry.Name()))).To(Succeed())
				}
			}
		}
	})
	return filepath.Join(dir, name)
}

func presetPaths(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	models, own, out := ofTeams("models"), ofTeams("own/results"), ofTeams("out")
	Expect(os.MkdirAll(models, 0o755)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(models, "file"), []byte("of the team\n"), 0o644)).To(Succeed())
	Expect(os.MkdirAll(own, 0o755)).To(Succeed())
	Expect(os.Chmod(own, 0o777)).To(Succeed())
	Expect(os.Symlink("/etc", out)).To(Succeed())
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))

	say("what is no clean path below another is refused when it is written")
	for _, name := range []string{"/", "/opt/bin/../../etc", teamFiles + "/../../etc"} {
		preset := presetOfPods(ns, "unclean", v1alpha1.PresetMount{HostPath: name, ContainerPath: "/opt/x"})
		_, err := tryCreate(ctx, "devicepresets", ns, preset)
		Expect(err).To(MatchError(ContainSubstring("must be absolute, clean")), name)
	}
	say("what is not allowed, or leads out of what is, keeps the claim")
	newPodPreset(ctx, ns, "outside",
		v1alpha1.PresetMount{HostPath: "/etc", ContainerPath: "/opt/a"},
		v1alpha1.PresetMount{HostPath: "/var/lib/kubelet", ContainerPath: "/opt/b"},
		v1alpha1.PresetMount{HostPath: teamFiles + "/models", ContainerPath: "/opt/c", ReadOnly: new(false)},
		v1alpha1.PresetMount{HostPath: teamFiles + "/own", ContainerPath: "/opt/d", ReadOnly: new(false)})
	newPodPreset(ctx, ns, "linked",
		v1alpha1.PresetMount{HostPath: teamFiles + "/out", ContainerPath: "/opt/a"},
		v1alpha1.PresetMount{HostPath: teamFiles + "/out/ssl", ContainerPath: "/opt/b"})
	refused := []*corev1.Pod{
		newPod(ctx, ns, "outside", withTemplate("gpu"), onNode(gpuNode), labelled("outside")),
		newPod(ctx, ns, "linked", withTemplate("gpu"), onNode(gpuNode), labelled("linked")),
	}
	eventuallyUnmet(ctx, ns, "mount /opt/a: /etc is not below", "mount /opt/b: /var/lib/kubelet is not below",
		"mount /opt/c: "+teamFiles+"/models is below", "mount /opt/d: "+teamFiles+"/own holds "+readOnlyFiles)
	eventuallyUnmet(ctx, ns, "mount /opt/a: "+teamFiles+"/out is a symbolic link", "mount /opt/b: "+teamFiles+"/out/ssl is a symbolic link")

	say("what is allowed is there, in pods of all kinds")
	newPodPreset(ctx, ns, "inside",
		v1alpha1.PresetMount{HostPath: teamFiles + "/models", ContainerPath: "/opt/models"},
		v1alpha1.PresetMount{HostPath: teamFiles + "/own/results", ContainerPath: "/opt/results", ReadOnly: new(false)},
		v1alpha1.PresetMount{ContainerPath: "/opt/scratch", Scratch: &v1alpha1.PresetScratch{SizeLimit: "4Mi"}})
	user := func(p *corev1.Pod) {
		p.Spec.HostUsers = new(false)
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000))}
	}
	first := newPod(ctx, ns, "first", withTemplate("gpu"), onNode(gpuNode), labelled("inside"))
	second := newPod(ctx, ns, "second", withTemplate("gpu"), onNode(gpuNode), labelled("inside"), user)
	running(ctx, first, second)
	const look = `cat /opt/models/file; touch /opt/models/x 2>/dev/null || echo read-only
		echo "$HOSTNAME" > /opt/results/"$HOSTNAME"; echo kept >> /opt/scratch/file; cat /opt/scratch/file
		dd if=/dev/zero of=/opt/scratch/big bs=1M count=8 2>&1 | grep -o "No space left"; rm -f /opt/scratch/big`
	const want = "of the team\nread-only\nkept\nNo space left\n"
	for _, p := range []*corev1.Pod{first, second} {
		Expect(inside(ctx, p, main, look)).To(Equal(want), p.Name)
		Expect(os.ReadFile(filepath.Join(own, p.Name))).To(BeEquivalentTo(p.Name + "\n"))
	}
	presetPathsStay(ctx, first, models)

	say("nothing is left when the claims are gone")
	all := slices.Concat(refused, []*corev1.Pod{first, second})
	for _, p := range all {
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{})).To(Succeed())
	}
	eventuallyGone(ctx, all...)
	Eventually(ctx, func(g Gomega) {
		left, err := h.OnNode(ctx, gpuNode, "sh", "-c",
			"ls /var/lib/fettle/mounts | grep -vx trees; "+idleAside+"grep /var/lib/fettle/mounts/; true")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(left)).To(BeEmpty())
	}).Should(Succeed())
	Expect(os.ReadFile(filepath.Join(filepath.Dir(models), "old/file"))).To(BeEquivalentTo("of the team\n"))
}

// eventuallyUnmet waits until a claim of a namespace says all that its presets lack.
func eventuallyUnmet(ctx context.Context, namespace string, lacks ...string) {
	GinkgoHelper()
	var says []types.GomegaMatcher
	for _, text := range lacks {
		says = append(says, ContainSubstring(text))
	}
	Eventually(ctx, func(g Gomega) {
		events, err := h.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=PresetUnmet"})
		g.Expect(err).NotTo(HaveOccurred())
		var notes []string
		for _, e := range events.Items {
			notes = append(notes, e.Note)
		}
		g.Expect(notes).To(ContainElement(And(says...)))
	}).Should(Succeed())
}

// presetPathsStay: a path that leads elsewhere after Prepare changes nothing, whoever starts the container again.
func presetPathsStay(ctx context.Context, p *corev1.Pod, models string) {
	GinkgoHelper()
	say("a path that was swapped since for a link changes nothing, also after the plugin and the container start again")
	Expect(os.Rename(models, filepath.Join(filepath.Dir(models), "old"))).To(Succeed())
	Expect(os.Symlink("/etc", models)).To(Succeed())
	killPlugin(ctx, gpuNode)
	crash(ctx, p)
	Expect(inside(ctx, p, main, "ls /opt/models; cat /opt/models/file /opt/scratch/file")).To(Equal("file\nof the team\nkept\n"))
}

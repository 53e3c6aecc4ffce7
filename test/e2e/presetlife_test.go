// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

func presetsInTime() {
	It("keeps what a claim was given when its preset is deleted, and leaves no trace after the claim", ofNode, presetDeleted)
	It("is kept away by a pod, selects pods, and is told of on claims, nodes and itself", presetsTold)
}

// traces are the driver's files on the GPU node, but for those that each device has once somebody had it.
func traces(ctx context.Context) []string {
	GinkgoHelper()
	files, err := h.Files(ctx, gpuNode, "/var/run/cdi", "/etc/cdi", "/var/lib/fettle")
	Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(files, func(file string) bool {
		return strings.HasPrefix(file, "/var/lib/fettle/owners/") || strings.HasPrefix(file, "/var/lib/fettle/health.json") ||
			file == "/var/lib/fettle/mounts" || file == "/var/lib/fettle/regions" // made once on a node; what a claim has is below
	})
}

// settled waits until the GPU node has no claim, and no files for containers but two for each device, the one of its secret name and the
// one that kubelet shows, and gives the files that it has then.
func settled(ctx context.Context) (files []string) {
	GinkgoHelper()
	devices := len(hardwareOf(gpuNode).Devices)
	Eventually(ctx, func(g Gomega) {
		files = traces(ctx)
		specs, shown := 0, 0
		for _, file := range files {
			g.Expect(file).NotTo(HavePrefix("/var/lib/fettle/claims/"))
			switch {
			case strings.HasPrefix(file, "/var/run/cdi/fettle-shown-"):
				shown++
			case strings.HasPrefix(file, "/var/run/cdi/"):
				specs++
			}
		}
		g.Expect([]int{specs, shown}).To(Equal([]int{devices, devices}), "%v", files)
	}).Should(Succeed())
	return files
}

func presetDeleted(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	before := settled(ctx)
	onGPUNode("data/file", "of the node\n", 0o644)
	onGPUNode("lib/libfakecuda.so.1.2", string(cudaPrograms(ctx)), 0o644)
	newClusterPreset(ctx, ns, "e2e-deleted", func(r *v1alpha1.PresetRules) {
		r.Env = []v1alpha1.PresetEnv{{Name: "GIVEN", Value: new("yes")}}
		r.Mounts = []v1alpha1.PresetMount{{HostPath: presetFiles + "/data", ContainerPath: "/opt/data"}}
		r.Libraries = []v1alpha1.PresetFiles{{Names: []string{"libfakecuda.so.*"}, Directories: []string{presetFiles + "/lib"}}}
	})
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass, where(onVendor("nvidia")))))
	const look = `echo "${GIVEN-no}"; cat /opt/data/file 2>/dev/null; uses 2>/dev/null || true`
	const all, nothing = "yes\nof the node\nthe node's CUDA\n", "no\n"
	first := newPod(ctx, ns, "first", withTemplate("gpu"), onNode(gpuNode), ofImage(glibcImage))
	running(ctx, first)
	Expect(inside(ctx, first, main, look)).To(Equal(all))

	deletePreset(ctx, clusterPresets, "", "e2e-deleted")
	say("a running pod keeps what it has, and so does its restarted container")
	Expect(inside(ctx, first, main, look)).To(Equal(all))
	restarted(ctx, first)
	Expect(inside(ctx, first, main, look)).To(Equal(all))
	eventuallyCounted(ctx, gpuNode, "", "e2e-deleted", 1)
	say("the next claim gets nothing")
	second := newPod(ctx, ns, "second", withTemplate("gpu"), onNode(gpuNode), ofImage(glibcImage))
	running(ctx, second)
	Expect(inside(ctx, second, main, look)).To(Equal(nothing))
	Expect(applied(ctx, onlyClaim(ctx, second))).To(BeNil())

	say("nothing is left once the claims are gone")
	Expect(traces(ctx)).NotTo(Equal(before))
	for _, p := range []*corev1.Pod{first, second} {
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{})).To(Succeed())
	}
	eventuallyGone(ctx, first, second)
	Expect(settled(ctx)).To(Equal(before))
	eventuallyCounted(ctx, gpuNode, "", "e2e-deleted", 0)
}

// applied is the condition on a claim's only device that says whose presets it has, nil where it has none.
func applied(ctx context.Context, claim *resourceapi.ResourceClaim) *metav1.Condition {
	GinkgoHelper()
	devices := readClaim(ctx, claim.Namespace, claim.Name).Status.Devices
	if len(devices) == 0 {
		return nil
	}
	Expect(devices).To(HaveLen(1))
	return meta.FindStatusCondition(devices[0].Conditions, "PresetsApplied")
}

// eventuallyCounted waits until a node says how many of its claims have something from a preset; none are not listed.
func eventuallyCounted(ctx context.Context, node, namespace, name string, claims int32) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		accelerators, err := h.AcceleratorNode(ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		var got int32
		for _, p := range accelerators.Status.Presets {
			if p.Namespace == namespace && p.Name == name {
				got = p.Claims
			}
		}
		g.Expect(got).To(Equal(claims))
	}).Should(Succeed())
}

// eventuallySummed waits until a preset's status says how many claims of how many nodes have something from it.
func eventuallySummed(ctx context.Context, resource, namespace, name string, claims, nodes int32) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		status, err := presetStatus(ctx, resource, namespace, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]*int32{status.Claims, status.Nodes}).To(Equal([]*int32{&claims, &nodes}))
	}).Should(Succeed())
}

func presetsTold(ctx SpecContext) {
	ns := newNamespace(ctx, nil)
	variable := func(name string) []v1alpha1.PresetEnv { return []v1alpha1.PresetEnv{{Name: name, Value: new("yes")}} }
	newClusterPreset(ctx, ns, "e2e-plain", func(r *v1alpha1.PresetRules) { r.Env = variable("PLAIN") })
	newClusterPreset(ctx, ns, "e2e-selected", func(r *v1alpha1.PresetRules) {
		r.PodSelector, r.Env = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}}, variable("EARLIER")
	})
	newPreset(ctx, ns, "team", func(r *v1alpha1.PresetRules) { r.Env = variable("TEAM") })
	_, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(clusterPresets)).Patch(ctx, "e2e-selected", types.MergePatchType,
		[]byte(`{"spec":{"env":[{"name":"SELECTED","value":"yes"}]}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"e2e-plain", "e2e-selected"} {
		eventuallyValid(ctx, clusterPresets, "", name, metav1.ConditionTrue, "")
	}
	gpu := spec(request("gpu", gpuClass, where(onVendor("nvidia"))))
	newTemplate(ctx, ns, "gpu", gpu)
	newClaim(ctx, ns, "shared", gpu)
	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "train"} }
	excluded := func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.ExcludePresetsAnnotation: "true"} }
	train := newPod(ctx, ns, "train", withTemplate("gpu"), onNode(gpuNode), labelled)
	other := newPod(ctx, ns, "other", withTemplate("gpu"), onNode(mixedNode))
	out := newPod(ctx, ns, "out", withTemplate("gpu"), onNode(gpuNode), labelled, excluded)
	sharing := newPod(ctx, ns, "sharing", withClaim("shared"), onNode(gpuNode), labelled, excluded)
	running(ctx, train, other, out, sharing)
	for p, want := range map[*corev1.Pod]string{train: "yes|yes|yes", other: "yes||yes", out: "||", sharing: "yes||yes"} {
		Expect(inside(ctx, p, main, `echo "$PLAIN|$SELECTED|$TEAM"`)).To(Equal(want+"\n"), p.Name)
	}
	toldOnClaims(ctx, train, out)
	eventuallyEvent(ctx, ns, "ResourceClaim", "shared", "PresetRefused",
		"ClusterDevicePreset e2e-selected, spec.podSelector: selects pods, and the claim is not of one pod alone")

	say("nodes and presets count claims")
	eventuallyCounted(ctx, gpuNode, "", "e2e-plain", 2)
	eventuallyCounted(ctx, mixedNode, "", "e2e-plain", 1)
	eventuallyCounted(ctx, mixedNode, "", "e2e-selected", 0)
	eventuallyCounted(ctx, gpuNode, ns, "team", 2)
	eventuallySummed(ctx, clusterPresets, "", "e2e-plain", 3, 2)
	eventuallySummed(ctx, clusterPresets, "", "e2e-selected", 1, 1)
	eventuallySummed(ctx, devicePresets, ns, "team", 3, 2)
	for _, p := range []*corev1.Pod{train, other, out, sharing} {
		Expect(h.Kube.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{})).To(Succeed())
	}
	eventuallySummed(ctx, clusterPresets, "", "e2e-plain", 0, 0)
	eventuallySummed(ctx, devicePresets, ns, "team", 0, 0)
}

// toldOnClaims looks at a claim with presets of both kinds, one of which was edited, and at one that none was for.
func toldOnClaims(ctx context.Context, train, out *corev1.Pod) {
	GinkgoHelper()
	claim := onlyClaim(ctx, train)
	Eventually(ctx, func() *metav1.Condition { return applied(ctx, claim) }).ShouldNot(BeNil()) // it is written after kubelet's answer
	claim = readClaim(ctx, claim.Namespace, claim.Name)
	condition := applied(ctx, claim)
	Expect(condition.Status).To(Equal(metav1.ConditionTrue))
	Expect(condition.Message).To(Equal("ClusterDevicePreset e2e-plain (generation 1), ClusterDevicePreset e2e-selected (generation 2), " +
		"DevicePreset " + train.Namespace + "/team (generation 1)"))
	var data struct {
		Presets []preset.Origin `json:"presets"`
	}
	Expect(json.Unmarshal(claim.Status.Devices[0].Data.Raw, &data)).To(Succeed())
	Expect(data.Presets).To(Equal([]preset.Origin{
		{Name: "e2e-plain", Generation: 1}, {Name: "e2e-selected", Generation: 2}, {Namespace: train.Namespace, Name: "team", Generation: 1},
	}))
	Expect(applied(ctx, onlyClaim(ctx, out))).To(BeNil())
}

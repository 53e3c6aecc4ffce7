// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/harness"
)

// failsByXid is a failure from the driver's event to the pods' status, and back: Xid 79, the GPU fell off the bus.
func (g *dividedGPUs) failsByXid(ctx SpecContext) {
	if older {
		Skip("an API server as of 1.34 drops taints, so that no pod is evicted")
	}
	const card = 3
	address := g.address(card)
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "failing", wholeClass, address)
	tolerant := request("gpu", wholeClass, where(partAt(address)))
	tolerant.Exactly.Tolerations = []resourceapi.DeviceToleration{{
		Key: "fettle.dev/unhealthy", Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute,
	}}
	newTemplate(ctx, ns, "watched", spec(tolerant))

	say("a pod that does not tolerate the failure is evicted, and the next one waits")
	worker := newPod(ctx, ns, "worker", withTemplate("failing"))
	running(ctx, worker)
	healthIn(ctx, worker, corev1.ResourceHealthStatusHealthy, "")
	g.eventuallyWatched(ctx)
	Expect(g.Report(card, 79)).To(Succeed())
	eventuallyTainted(ctx, address, "Xid79:NoExecute")
	eventuallyProblem(ctx, gpuNode, "Xid79", address)
	eventuallyEvent(ctx, ns, "Pod", worker.Name, "DeviceTaintManagerEviction", "Marking for deletion")
	eventuallyGone(ctx, worker)
	next := newPod(ctx, ns, "next", withTemplate("failing"))
	eventuallyUnschedulable(ctx, next, "cannot allocate all claims")

	say("a pod that tolerates it gets the GPU, and its status says what is wrong")
	watcher := newPod(ctx, ns, "watcher", withTemplate("watched"))
	running(ctx, watcher)
	healthIn(ctx, watcher, corev1.ResourceHealthStatusUnhealthy, "fell off the bus")

	say("the GPU is bound to its driver again")
	bindAgain(ctx, address)
	eventuallyTainted(ctx, address)
	healthIn(ctx, watcher, corev1.ResourceHealthStatusHealthy, "")
	removePods(ctx, watcher)
	running(ctx, next)
	removePods(ctx, next)
}

// eventuallyWatched waits until somebody has read the cards' health since the spec began. Who does has an event set: the library tells no
// one of an error that came before.
func (g *dividedGPUs) eventuallyWatched(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func() int { return g.look().Calls["Device.GetTotalEccErrors"] }).Should(BeNumerically(">", 0))
}

func partAt(address string) string {
	return `device.attributes["fettle.dev"].pciAddress == "` + address + `"`
}

// bindAgain has the kernel take a GPU from its driver and give it back.
func bindAgain(ctx context.Context, address string) {
	GinkgoHelper()
	const script = `cd "$1" && driver=$(readlink -f "devices/$2/driver") && echo "$2" > "$driver/unbind" && echo "$2" > "$driver/bind"`
	_, err := h.OnNode(ctx, gpuNode, "sh", "-c", script, "sh", harness.MachineRoot+"/sys/bus/pci", address)
	Expect(err).NotTo(HaveOccurred())
}

// eventuallyTainted waits until a whole GPU of the node is published with these taints, as VALUE:EFFECT, and no others.
func eventuallyTainted(ctx context.Context, address string, want ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		devices, err := poolDevices(ctx, gpuNode+"/gpu")
		g.Expect(err).NotTo(HaveOccurred())
		published := false
		var got []string
		for _, d := range devices {
			if d.Name != wholeName(address) {
				continue
			}
			published = true
			for _, t := range d.Taints {
				got = append(got, t.Value+":"+string(t.Effect))
			}
		}
		g.Expect(published).To(BeTrue())
		g.Expect(got).To(ConsistOf(want))
	}).Should(Succeed())
}

// letsGo: the plugin lets go of GPUs whose driver is to be changed. Meanwhile it releases the claim of a pod, for which it destroys
// an instance.
func (g *dividedGPUs) letsGo(ctx SpecContext) {
	needsCounters()
	const card = 2
	address := g.address(card)
	newPolicy(ctx, gpuNode, "lets-go", dynamicMIG(address))
	eventuallyPublishes(ctx, gpuNode, migName(address, small, 0))
	ns := newNamespace(ctx, nil)
	newPart(ctx, ns, "part", smallClass, address)
	pod := newPod(ctx, ns, "pod", withTemplate("part"))
	running(ctx, pod)

	quiesceNode(ctx, v1alpha1.QuiesceAnnotation+"=nvidia")
	DeferCleanup(func(ctx SpecContext) { quiesceNode(ctx, v1alpha1.QuiesceAnnotation+"-") })
	Eventually(ctx, func() []string { return published(ctx, gpuNode) }).Should(BeEmpty())
	eventuallyQuiesced(ctx, metav1.ConditionFalse, "ClaimsPrepared")
	next := newPod(ctx, ns, "next", withTemplate("part"))
	eventuallyUnschedulable(ctx, next, "cannot allocate all claims")

	say("its claim is released, with the library's help")
	removePods(ctx, pod)
	Eventually(ctx, g.occupied).Should(BeEmpty())
	eventuallyQuiesced(ctx, metav1.ConditionTrue, "Quiesced")
	Expect(programs(ctx)).NotTo(ContainSubstring("fettle-nvml"))
	Expect(pluginFiles(ctx)).NotTo(ContainSubstring("/dev/nvidia"))

	say("another pod of the plugin opens nothing either")
	_, err := h.Kubectl(ctx, "delete", "pod", "-n", "fettle-system", "-l", "app.kubernetes.io/component=kubeletplugin",
		"--field-selector", "spec.nodeName="+gpuNode, "--wait")
	Expect(err).NotTo(HaveOccurred())
	pluginReady(ctx, gpuNode)
	eventuallyQuiesced(ctx, metav1.ConditionTrue, "Quiesced")
	Eventually(ctx, func() []string { return published(ctx, gpuNode) }).Should(BeEmpty())
	Expect(programs(ctx)).NotTo(ContainSubstring("fettle-nvml"))

	say("the driver was changed")
	quiesceNode(ctx, v1alpha1.QuiesceAnnotation+"-")
	running(ctx, next)
	Eventually(ctx, func() string { return programs(ctx) }).Should(ContainSubstring("fettle-nvml"))
	removePods(ctx, next)
}

// quiesceNode changes the annotation of the GPU node's AcceleratorNode.
func quiesceNode(ctx context.Context, change string) {
	GinkgoHelper()
	_, err := h.Kubectl(ctx, "annotate", "--overwrite", "acceleratornode", gpuNode, change)
	Expect(err).NotTo(HaveOccurred())
}

func eventuallyQuiesced(ctx context.Context, status metav1.ConditionStatus, reason string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		node, err := h.AcceleratorNode(ctx, gpuNode)
		g.Expect(err).NotTo(HaveOccurred())
		c := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionQuiesced)
		g.Expect(c).NotTo(BeNil())
		g.Expect(string(c.Status)+" "+c.Reason).To(Equal(string(status)+" "+reason), c.Message)
	}).Should(Succeed())
}

// inPods prints the directories of the processes of a node's pods. All nodes of a cluster, and all clusters of a machine, see each
// other's processes.
const inPods = `here=$(while read -r _ _ _ root point _; do
		[ "$point" != ` + harness.MachineRoot + ` ] || echo "${root%/machine}"; done < /proc/self/mountinfo)
	grep -l " $here/kubelet/pods/" /proc/[0-9]*/mountinfo 2>/dev/null | sed s,/mountinfo,, `

// programs are the names of the processes of the GPU node's pods, as the kernel cuts them.
func programs(ctx context.Context) string {
	GinkgoHelper()
	out, err := h.OnNode(ctx, gpuNode, "sh", "-c", inPods+`| while read -r p; do cat $p/comm 2>/dev/null; done; true`)
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(ContainSubstring("fettle-kubeletp"))
	return out
}

// pluginFiles are the files that the plugin on the GPU node has open.
func pluginFiles(ctx context.Context) string {
	GinkgoHelper()
	const script = inPods + `| while read -r p; do [ "$(cat $p/comm 2>/dev/null)" != fettle-kubeletp ] || ls -l $p/fd; done; true`
	out, err := h.OnNode(ctx, gpuNode, "sh", "-c", script)
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(ContainSubstring("socket:"))
	return out
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	nodesPolicy = "e2e-nodes"
	reserved    = "example.com/e2e-gpu=reserved:NoSchedule"
	// untolerated is how the scheduler names that taint.
	untolerated = "untolerated taint"
)

// reservesNodes taints one of the two nodes: the other one is where the controller and the webhook can be.
func reservesNodes() {
	It("keeps pods without devices off tainted nodes, and no others", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		reserve(ctx)
		cpu := newPod(ctx, ns, "cpu", onNode(gpuNode))
		anywhere := newPod(ctx, ns, "anywhere")
		newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
		newClaim(ctx, ns, "claim", spec(request("gpu", gpuClass)))
		pods := []*corev1.Pod{
			newPod(ctx, ns, "template", withTemplate("gpu"), onNode(gpuNode)), newPod(ctx, ns, "claim", withClaim("claim"), onNode(gpuNode)),
		}
		if !older {
			pods = append(pods, newPod(ctx, ns, "extended", asExtended, onNode(gpuNode)),
				newPod(ctx, ns, "sidecar", onNode(gpuNode), func(p *corev1.Pod) {
					sidecar := *p.Spec.Containers[0].DeepCopy()
					sidecar.Name, sidecar.RestartPolicy = "sidecar", new(corev1.ContainerRestartPolicyAlways)
					sidecar.Resources.Limits = corev1.ResourceList{"deviceclass.resource.kubernetes.io/" + gpuClass: most(1)}
					p.Spec.InitContainers = []corev1.Container{sidecar}
				}))
		}
		running(ctx, append(pods, anywhere)...)
		eventuallyUnschedulable(ctx, cpu, untolerated)
		staysPending(ctx, cpu)
		now, err := h.Kube.CoreV1().Pods(ns).Get(ctx, anywhere.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(now.Spec.NodeName).To(Equal(mixedNode))

		dropPolicy(ctx, nodesPolicy)
		eventuallyTaints(ctx, gpuNode)
		running(ctx, cpu)
	})

	It("leaves pods with devices pending while the webhook is down", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		reserve(ctx)
		newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
		var early *corev1.Pod
		withoutWebhook(ctx, func() {
			early = newPod(ctx, ns, "early", withTemplate("gpu"), onNode(gpuNode))
			eventuallyUnschedulable(ctx, early, untolerated)
		})
		running(ctx, newPod(ctx, ns, "late", withTemplate("gpu"), onNode(gpuNode)))
		staysPending(ctx, early)
	})

	It("has pods with devices preempt pods without", preempts)

	It("leaves the taints of others on nodes", func(ctx SpecContext) {
		const theirs = "example.com/e2e-theirs=:PreferNoSchedule"
		changeTaints(ctx, func(taints []corev1.Taint) []corev1.Taint {
			return append(taints, corev1.Taint{Key: "example.com/e2e-theirs", Effect: corev1.TaintEffectPreferNoSchedule})
		})
		DeferCleanup(func(ctx SpecContext) {
			changeTaints(ctx, func([]corev1.Taint) []corev1.Taint { return nil })
		})
		reserve(ctx, theirs)
		dropPolicy(ctx, nodesPolicy)
		eventuallyTaints(ctx, gpuNode, theirs)
	})
}

// preempts: the pod with a device needs the CPUs that a pod without one has. Its class is the policy's default.
func preempts(ctx SpecContext) {
	const first, filler = "e2e-gpu-pods", "e2e-filler"
	ns := newNamespace(ctx, nil)
	create(ctx, "partitionpolicies", "", &v1alpha1.PartitionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-priorities"},
		Spec: v1alpha1.PartitionPolicySpec{Nodes: &v1alpha1.NodePartition{PriorityClasses: []v1alpha1.NodePriorityClass{
			{Name: first, Value: 100000, Default: true}, {Name: filler, Value: -10},
		}}},
	})
	Eventually(ctx, func() error {
		_, err := h.Kube.SchedulingV1().PriorityClasses().Get(ctx, filler, metav1.GetOptions{})
		return err
	}).Should(Succeed())
	node, err := h.Kube.CoreV1().Nodes().Get(ctx, gpuNode, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	half := resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *half}
	}
	cpu := newPod(ctx, ns, "cpu", asks, onNode(gpuNode), func(p *corev1.Pod) { p.Spec.PriorityClassName = filler })
	running(ctx, cpu)
	newTemplate(ctx, ns, "gpu", spec(request("gpu", gpuClass)))
	Eventually(ctx, func(g Gomega) { // the webhook learns of the class a moment after it is there
		dry := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "dry-"}}
		dry.Spec.Containers = []corev1.Container{{Name: main, Image: image}}
		withTemplate("gpu")(dry)
		made, err := h.Kube.CoreV1().Pods(ns).Create(ctx, dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(made.Spec.PriorityClassName).To(Equal(first))
	}).Should(Succeed())
	pod := newPod(ctx, ns, "gpu", asks, withTemplate("gpu"), onNode(gpuNode))
	Expect(*pod.Spec.Priority).To(Equal(int32(100000)))
	running(ctx, pod)
	eventuallyGone(ctx, cpu)
}

// reserve taints the node of the H100s, and waits until it has this taint beside those of others.
func reserve(ctx context.Context, others ...string) {
	GinkgoHelper()
	create(ctx, "partitionpolicies", "", &v1alpha1.PartitionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: nodesPolicy},
		Spec: v1alpha1.PartitionPolicySpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: gpuNode}},
			Nodes: &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{
				{Key: "example.com/e2e-gpu", Value: "reserved", Effect: corev1.TaintEffectNoSchedule},
			}},
		},
	})
	DeferCleanup(func(ctx SpecContext) { // before the next spec, which wants the node
		err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("partitionpolicies")).Delete(ctx, nodesPolicy, metav1.DeleteOptions{})
		if err == nil {
			eventuallyTaints(ctx, gpuNode, others...)
		}
	})
	eventuallyTaints(ctx, gpuNode, append([]string{reserved}, others...)...)
}

func eventuallyTaints(ctx context.Context, node string, want ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		n, err := h.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		got := []string{}
		for _, t := range n.Spec.Taints {
			got = append(got, v1alpha1.NodeTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}.String())
		}
		g.Expect(got).To(ConsistOf(want))
	}).Should(Succeed())
}

// changeTaints changes the taints of the node of the H100s, as an administrator would.
func changeTaints(ctx context.Context, change func([]corev1.Taint) []corev1.Taint) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		n, err := h.Kube.CoreV1().Nodes().Get(ctx, gpuNode, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		n.Spec.Taints = change(n.Spec.Taints)
		_, err = h.Kube.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}).Should(Succeed())
}

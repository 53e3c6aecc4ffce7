// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

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
	It("keeps pods without devices off tainted nodes, and no others", differs, func(ctx SpecContext) {
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

	It("leaves pods with devices pending while the webhook is down", later("the other specs of reserved nodes need the webhook too"),
		func(ctx SpecContext) {
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

	It("evicts the holder of a device for a pod with a higher priority, and none that a budget keeps", differs, reclaims,
		SpecTimeout(h.Patient(10*time.Minute)))

	It("leaves the taints of others on nodes", later("unit tests show which taints are whose"), func(ctx SpecContext) {
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

// reclaims: a pod that waits gets the device of the one holder with the lowest priority that no PodDisruptionBudget keeps. The next one
// gets nothing as long as the budget is there.
func reclaims(ctx SpecContext) {
	const urgent, batch, filler, policy = "e2e-urgent", "e2e-batch", "e2e-batch-low", "e2e-reclaim"
	ns := newNamespace(ctx, nil)
	create(ctx, "partitionpolicies", "", &v1alpha1.PartitionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: v1alpha1.PartitionPolicySpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: gpuNode}},
			Nodes: &v1alpha1.NodePartition{
				Reclaim: v1alpha1.ReclaimEvict,
				PriorityClasses: []v1alpha1.NodePriorityClass{
					{Name: urgent, Value: 100000, ReclaimNamespaces: []string{ns}}, {Name: batch, Value: 1000}, {Name: filler, Value: 10},
				},
			},
		},
	})
	for _, class := range []string{urgent, batch, filler} {
		Eventually(ctx, func() error {
			_, err := h.Kube.SchedulingV1().PriorityClasses().Get(ctx, class, metav1.GetOptions{})
			return err
		}).Should(Succeed())
	}
	newTemplate(ctx, ns, "one", spec(request("gpu", gpuClass)))
	newTemplate(ctx, ns, "most", spec(request("gpu", gpuClass, count(6))))
	holder := func(name, class, template string) *corev1.Pod {
		return newPod(ctx, ns, name, withTemplate(template), onNode(gpuNode), func(p *corev1.Pod) {
			p.Labels, p.Spec.PriorityClassName = map[string]string{"e2e": name}, class
		})
	}
	equal, kept, low := holder("equal", urgent, "most"), holder("kept", batch, "one"), holder("low", filler, "one")
	running(ctx, equal, kept, low)
	_, err := h.Kube.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keeps"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: kept.Labels}, MaxUnavailable: new(intstr.FromInt32(0)),
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())

	say("the holder with the lowest priority makes way, and no other")
	first := holder("first", urgent, "one")
	eventuallyRuns(ctx, first)
	eventuallyGone(ctx, low)
	eventuallyEvent(ctx, ns, "Pod", low.Name, "EvictedForPriority", policy)
	eventuallyEvent(ctx, ns, "Pod", first.Name, "DevicesReclaimed", gpuNode)
	stillRun(ctx, equal, kept)
	if older {
		return // what follows is the controller's own: its pause between two evictions, and budgets
	}

	say("the holder that a budget keeps stays, and an Event says why")
	second := holder("second", urgent, "one")
	Eventually(ctx, func(g Gomega) {
		events, err := h.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var seen []string
		for _, e := range events.Items {
			if e.Regarding.Name == second.Name && e.Reason == "ReclaimRefused" {
				seen = append(seen, e.Note)
			}
		}
		g.Expect(seen).To(ContainElement(ContainSubstring("PodDisruptionBudget")))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
	stillRun(ctx, equal, kept, first)

	say("the budget goes, and so does the pod")
	Expect(h.Kube.PolicyV1().PodDisruptionBudgets(ns).Delete(ctx, "keeps", metav1.DeleteOptions{})).To(Succeed())
	eventuallyRuns(ctx, second)
	eventuallyGone(ctx, kept)
	stillRun(ctx, equal, first)
}

// eventuallyRuns waits for a pod for which another one has to be evicted first: policies wait a minute between two of them.
func eventuallyRuns(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		now, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Status.Phase).To(Equal(corev1.PodRunning))
	}).WithTimeout(h.Patient(3 * soon)).Should(Succeed())
}

// stillRun wants pods to be those that they were, and not about to end.
func stillRun(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, p := range pods {
		now, err := h.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(now.UID).To(Equal(p.UID))
		Expect(now.DeletionTimestamp).To(BeNil(), "pod %s", p.Name)
		Expect(now.Status.Phase).To(Equal(corev1.PodRunning), "pod %s", p.Name)
	}
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
	Eventually(ctx, func(g Gomega) { // pods tolerate what the status says
		p, err := h.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("partitionpolicies")).Get(ctx, nodesPolicy, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		tolerated, _, _ := unstructured.NestedSlice(p.Object, "status", "toleratedTaints")
		g.Expect(tolerated).To(HaveLen(1))
	}).Should(Succeed())
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

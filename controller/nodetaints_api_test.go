// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/controller/webhook"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// nodePolicy is a policy about the nodes of a pool, with taints in the form KEY=VALUE:EFFECT.
func nodePolicy(name, pool string, taints ...string) *v1alpha1.PartitionPolicy {
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
	p.Spec.Nodes = &v1alpha1.NodePartition{}
	for _, text := range taints {
		key, rest, _ := strings.Cut(text, "=")
		value, effect, _ := strings.Cut(rest, ":")
		p.Spec.Nodes.Taints = append(p.Spec.Nodes.Taints, v1alpha1.NodeTaint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return p
}

// taintable makes a Node of a pool and an AcceleratorNode with as many GPUs.
func (c cluster) taintable(t *testing.T, name, pool string, gpus int32) *v1alpha1.AcceleratorNode {
	t.Helper()
	a := c.accelerator(t, name, "", true)
	c.label(t, name, pool)
	c.setGPUs(t, a, gpus)
	return a
}

func (c cluster) setGPUs(t *testing.T, a *v1alpha1.AcceleratorNode, gpus int32) {
	t.Helper()
	before := a.DeepCopy()
	a.Status.Pools = []v1alpha1.PoolStatus{{Name: a.Name + "/gpu", Kind: "gpu", Devices: gpus}}
	check.Must(t, c.client.Status().Patch(t.Context(), a, client.MergeFrom(before)))
}

// testNodeTaints: nodes with devices get the taints of policies and lose them with the policy; those of others stay as they are.
func (c cluster) testNodeTaints(t *testing.T) {
	const ours, theirs = "example.com/gpu=a:NoSchedule", "team=b:NoSchedule"
	c.taintable(t, "taint-gpus", "tainted", 2)
	empty := c.taintable(t, "taint-empty", "tainted", 0)
	c.taintable(t, "taint-elsewhere", "other", 2)
	c.taint(t, "taint-gpus", theirs)
	p := nodePolicy("taints", "tainted", ours, "example.com/gpu=a:PreferNoSchedule")
	c.create(t, p)
	c.awaitTaints(t, "taint-gpus", theirs, ours, "example.com/gpu=a:PreferNoSchedule")
	c.awaitTainted(t, p, "True Tainted", 1)
	if got := c.nodeTaints(t, "taint-empty") + c.nodeTaints(t, "taint-elsewhere"); got != "" {
		t.Errorf("nodes without devices, or not selected, have %s", got)
	}
	if status.Condition(p.Status.Conditions, v1alpha1.ConditionApplied).Type != "" {
		t.Errorf("a policy without devices says what became of them: %v", p.Status.Conditions)
	}
	c.wantRow(t, "partitionpolicies/"+p.Name, map[string]string{"Tainted": "1"})

	// A node gets its first device. Later its driver is away for a while.
	c.setGPUs(t, empty, 1)
	c.awaitTaints(t, "taint-empty", ours, "example.com/gpu=a:PreferNoSchedule")
	c.awaitTainted(t, p, "True Tainted", 2)
	c.setGPUs(t, empty, 0)

	// Somebody takes one off, and it is put again. Another has the same taint with another value, and keeps it.
	c.taint(t, "taint-gpus", theirs, "example.com/gpu=a:PreferNoSchedule")
	c.awaitTaints(t, "taint-gpus", theirs, ours, "example.com/gpu=a:PreferNoSchedule")
	c.taint(t, "taint-gpus", theirs, "example.com/gpu=mine:NoSchedule", "example.com/gpu=a:PreferNoSchedule")
	c.awaitTainted(t, p, "False TaintTaken", 1)
	if got := c.nodeTaints(t, "taint-empty"); got == "" {
		t.Error("a node whose devices are away lost its taints")
	}

	// A second policy wants the same taint as somebody else's. The first changes.
	same := nodePolicy("taints-same", "tainted", "example.com/gpu=mine:NoSchedule")
	same.Spec.Priority = 1
	c.create(t, same)
	c.awaitTaints(t, "taint-empty", "example.com/gpu=a:PreferNoSchedule", "example.com/gpu=mine:NoSchedule")
	c.update(t, p, func() { p.Spec.Nodes.Taints = p.Spec.Nodes.Taints[1:] })
	c.awaitTainted(t, p, "True Tainted", 2)
	check.Must(t, c.client.Delete(t.Context(), p))
	check.Must(t, c.client.Delete(t.Context(), same))
	c.awaitTaints(t, "taint-empty")
	c.awaitTaints(t, "taint-gpus", theirs, "example.com/gpu=mine:NoSchedule")
	c.taint(t, "taint-gpus")
}

// noExecuteKey is the only key with which nodes get taints with NoExecute.
const noExecuteKey = "example.com/listed"

// testNoExecute: a taint with NoExecute is put on nodes only if its key is listed. One that is there stays as long as its policy wants it.
func (c cluster) testNoExecute(t *testing.T) {
	const listed, unlisted, there = noExecuteKey + "=:NoExecute", "example.com/unlisted=:NoExecute", "example.com/there=a:NoExecute"
	c.taintable(t, "taint-ends", "ends", 1)
	p := nodePolicy("ends", "ends", listed, unlisted, there)
	c.create(t, p)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"taints":[{"key":%q,"value":"a","effect":"NoExecute"}]}}`,
		v1alpha1.TaintsAnnotation, there, "example.com/there")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taint-ends"}}
	check.Must(t, c.client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, patch)))
	c.awaitTaints(t, "taint-ends", listed, there)
	c.awaitTainted(t, p, "False NoExecuteNotAllowed", 0)
	c.update(t, p, func() { p.Spec.Nodes.Taints = p.Spec.Nodes.Taints[:1] })
	c.awaitTaints(t, "taint-ends", listed)
	c.awaitTainted(t, p, "True Tainted", 1)
}

// testTaintsOfDeletedPolicy: a policy that was deleted while no controller ran leaves nothing behind. It is called before the controller
// starts, and the function that it returns afterwards.
func (c cluster) testTaintsOfDeletedPolicy(t *testing.T) (check func(*testing.T)) {
	t.Helper()
	const name, theirs, ours = "taint-left", "a=:NoSchedule", "example.com/gone=:NoSchedule"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.TaintsAnnotation: ours}}}
	c.create(t, node)
	c.taint(t, name, theirs, ours)
	return func(t *testing.T) { c.awaitTaints(t, name, theirs) }
}

// testPriorityClasses: classes of policies are made, made again with another value, and deleted with the policy. Those of others stay.
func (c cluster) testPriorityClasses(t *testing.T) {
	theirs := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "api-theirs"}, Value: 7}
	c.create(t, theirs)
	p := nodePolicy("priorities", "nothing")
	p.Spec.Nodes.PriorityClasses = []v1alpha1.NodePriorityClass{{Name: "api-gpu", Value: 1000, Default: true}, {Name: "api-theirs", Value: 8}}
	c.create(t, p)
	c.awaitPriority(t, "api-gpu", 1000)
	c.awaitClasses(t, p, "False ClassTaken")
	c.update(t, p, func() { p.Spec.Nodes.PriorityClasses = p.Spec.Nodes.PriorityClasses[:1] })
	c.awaitClasses(t, p, "True ClassesMade")
	c.update(t, p, func() { p.Spec.Nodes.PriorityClasses[0].Value = 2000 })
	c.awaitPriority(t, "api-gpu", 2000)
	c.awaitClasses(t, p, "True ClassesMade")
	check.Must(t, c.client.Delete(t.Context(), p))
	c.awaitPriority(t, "api-gpu", 0)
	c.awaitPriority(t, "api-theirs", 7)
}

// awaitPriority waits until a PriorityClass has a value, 0 if it must not exist.
func (c cluster) awaitPriority(t *testing.T, name string, want int32) {
	t.Helper()
	apitest.Eventually(t, func() string {
		var class schedulingv1.PriorityClass
		err := c.client.Get(t.Context(), client.ObjectKey{Name: name}, &class)
		if client.IgnoreNotFound(err) != nil || class.Value != want {
			return fmt.Sprintf("PriorityClass %s has %d, error %v; want %d", name, class.Value, err, want)
		}
		return ""
	})
}

func (c cluster) awaitClasses(t *testing.T, p *v1alpha1.PartitionPolicy, want string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		got := status.Condition(p.Status.Conditions, v1alpha1.ConditionPriorityClasses)
		if string(got.Status)+" "+got.Reason != want || got.ObservedGeneration != p.Generation {
			return fmt.Sprintf("%+v, want %s", got, want)
		}
		return ""
	})
}

// update changes an object as it is now.
func (c cluster) update(t *testing.T, o client.Object, change func()) {
	t.Helper()
	apitest.Eventually(t, func() string {
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		change()
		return errorText(c.client.Update(t.Context(), o))
	})
}

// taint has a node have these taints and no others, as somebody else would.
func (c cluster) taint(t *testing.T, name string, taints ...string) {
	t.Helper()
	list := []string{}
	for _, one := range nodePolicy("", "", taints...).Spec.Nodes.Taints {
		list = append(list, fmt.Sprintf(`{"key":%q,"value":%q,"effect":%q}`, one.Key, one.Value, one.Effect))
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := fmt.Appendf(nil, `{"spec":{"taints":[%s]}}`, strings.Join(list, ","))
	check.Must(t, c.client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, patch)))
}

// nodeTaints returns the taints of a node, sorted. The API server taints new Nodes as not ready, since no kubelet tells otherwise.
func (c cluster) nodeTaints(t *testing.T, name string) string {
	t.Helper()
	var node corev1.Node
	check.Must(t, c.client.Get(t.Context(), client.ObjectKey{Name: name}, &node))
	var out []string
	for _, one := range node.Spec.Taints {
		if one.Key != corev1.TaintNodeNotReady {
			out = append(out, v1alpha1.NodeTaint{Key: one.Key, Value: one.Value, Effect: one.Effect}.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (c cluster) awaitTaints(t *testing.T, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	apitest.Eventually(t, func() string {
		if got := c.nodeTaints(t, name); got != strings.Join(want, " ") {
			return fmt.Sprintf("node %s has %q, want %q", name, got, want)
		}
		return ""
	})
}

func (c cluster) awaitTainted(t *testing.T, p *v1alpha1.PartitionPolicy, want string, nodes int32) {
	t.Helper()
	apitest.Eventually(t, func() string {
		check.Must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		got := status.Condition(p.Status.Conditions, v1alpha1.ConditionTainted)
		if string(got.Status)+" "+got.Reason != want || p.Status.TaintedNodes != nodes || got.ObservedGeneration != p.Generation {
			return fmt.Sprintf("%d nodes, %+v; want %d, %s", p.Status.TaintedNodes, got, nodes, want)
		}
		return ""
	})
}

// podsConfiguration is what the chart renders, without its conditions. Its policy is Fail, to show a call that fails.
func podsConfiguration(w webhookProcess) *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fettle-pods"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "nodes.fettle.dev", AdmissionReviewVersions: []string{"v1"},
			SideEffects:       ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:     ptr.To(admissionregistrationv1.Fail),
			ClientConfig:      w.target(webhook.PodsPathPrefix),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "tolerating"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
}

// tolerateTaints: pods that get devices by a claim, a template or an extended resource tolerate the taints of policies, and no others do.
func (c cluster) tolerateTaints(t *testing.T, w webhookProcess) {
	t.Helper()
	c.create(t, podsConfiguration(w))
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tolerating"}})
	tolerated := nodePolicy("tolerated", "nothing", "example.com/gpu=a:NoSchedule")
	tolerated.Spec.Nodes.PriorityClasses = []v1alpha1.NodePriorityClass{{Name: "api-pods", Value: 5000, Default: true}}
	c.create(t, tolerated)
	c.awaitPriority(t, "api-pods", 5000)
	claim := claimWith(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}`)
	claim.Namespace, claim.GenerateName, claim.Name = "tolerating", "", "claim"
	c.create(t, claim)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "tolerating", Name: "template"}}
	template.Spec.Spec = claim.Spec
	c.create(t, template)
	pod := func(change func(*corev1.PodSpec)) (string, error) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tolerating", GenerateName: "p-"}}
		p.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		change(&p.Spec)
		err := c.client.Create(t.Context(), p, client.DryRunAll)
		var out []string
		for _, one := range p.Spec.Tolerations {
			if one.Key == "example.com/gpu" {
				out = append(out, fmt.Sprintf("%s %s %s %s", one.Key, one.Operator, one.Value, one.Effect))
			}
		}
		return fmt.Sprintf("%s, %s %d", strings.Join(out, ","), p.Spec.PriorityClassName, ptr.Deref(p.Spec.Priority, -1)), err
	}
	asks := func(name string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}}
	}
	const want, none = "example.com/gpu Equal a NoSchedule, api-pods 5000", ",  0"
	for name, test := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string
	}{
		"claim": {func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: ptr.To("claim")}}
		}, want},
		"template": {func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimTemplateName: ptr.To("template")}}
		}, want},
		"class as a resource": {func(s *corev1.PodSpec) {
			s.Containers[0].Resources = asks("deviceclass.resource.kubernetes.io/gpu.fettle.dev")
		}, want},
		"extended resource of a sidecar": {func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{
				{Name: "b", Image: "b", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: asks("fettle.dev/gpu")},
			}
		}, want},
		"class of its own": {func(s *corev1.PodSpec) {
			s.Containers[0].Resources, s.PriorityClassName = asks("fettle.dev/gpu"), "system-node-critical"
		}, "example.com/gpu Equal a NoSchedule, system-node-critical 2000001000"},
		"CPU":       {func(*corev1.PodSpec) {}, none},
		"another's": {func(s *corev1.PodSpec) { s.Containers[0].Resources = asks("example.com/other") }, none},
		"claim does not exist": {func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: ptr.To("no")}}
		}, none},
	} {
		apitest.Eventually(t, func() string { // the API server reads its webhooks with a delay, and the webhook the policies
			got, err := pod(test.change)
			if err != nil || got != test.want {
				return fmt.Sprintf("%s: tolerates %q, error %v; want %q", name, got, err, test.want)
			}
			return ""
		})
	}
}

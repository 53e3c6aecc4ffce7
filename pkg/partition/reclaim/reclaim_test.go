// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/reclaim"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/seed"
)

// world is a cluster as text, and the pod that waits in it.
type world struct{ text strings.Builder }

const head = `
- apiVersion: resource.k8s.io/v1
  kind: DeviceClass
  metadata: {name: gpu}
  spec: {selectors: [{cel: {expression: 'device.driver == "fettle.dev"'}}]}
`

// node has devices named a, b, c, ... and, if it is not empty, a pool.
func (w *world) node(name, pool string, devices int) *world {
	fmt.Fprintf(&w.text, "- {apiVersion: v1, kind: Node, metadata: {name: %s, labels: {pool: %q}}, status: {allocatable: {cpu: 4}}}\n",
		name, pool)
	var list []string
	for i := range devices {
		list = append(list, fmt.Sprintf("{name: '%c'}", 'a'+i))
	}
	fmt.Fprintf(&w.text, `- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: %s}
  spec: {driver: fettle.dev, nodeName: %[1]s, pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}, devices: [%s]}
`, name, strings.Join(list, ", "))
	return w
}

// half is a node of which the plugin has published one of two slices.
func (w *world) half(name string) *world {
	text := w.text.String()
	w.text.Reset()
	w.node(name, "half", 0)
	whole := strings.Replace(w.text.String(), "resourceSliceCount: 1", "resourceSliceCount: 2", 1)
	w.text.Reset()
	w.text.WriteString(text + whole)
	return w
}

// holder is a pod on a node with devices of it. Metadata are more fields of it.
func (w *world) holder(name, node string, priority int, devices, metadata string) *world {
	fmt.Fprintf(&w.text, `- apiVersion: v1
  kind: Pod
  metadata: {namespace: other, name: %s, uid: %[1]s%s}
  spec: {nodeName: %s, priority: %d, resourceClaims: [{name: gpu, resourceClaimName: %[1]s}], containers: [{name: c}]}
  status: {phase: Running}
`, name, metadata, node, priority)
	return w.claim(name, node, devices, name)
}

// claim has devices of a node, for these pods.
func (w *world) claim(name, node, devices string, users ...string) *world {
	var results, reserved []string
	for _, d := range devices {
		results = append(results, fmt.Sprintf("{request: r, driver: fettle.dev, pool: %s, device: '%c'}", node, d))
	}
	for _, user := range users {
		reserved = append(reserved, fmt.Sprintf("{resource: pods, name: %s, uid: %[1]s}", user))
	}
	fmt.Fprintf(&w.text, `- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {namespace: other, name: %s, uid: claim-%[1]s}
  spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}
  status: {allocation: {devices: {results: [%s]}}, reservedFor: [%s]}
`, name, strings.Join(results, ", "), strings.Join(reserved, ", "))
	return w
}

// user is a pod that uses a claim of another.
func (w *world) user(name, node string, priority int, claim string) *world {
	fmt.Fprintf(&w.text, `- apiVersion: v1
  kind: Pod
  metadata: {namespace: other, name: %s, uid: %[1]s}
  spec: {nodeName: %s, priority: %d, resourceClaims: [{name: gpu, resourceClaimName: %s}], containers: [{name: c}]}
  status: {phase: Running}
`, name, node, priority, claim)
	return w
}

// cpu is a pod without devices that has all CPUs of a node.
func (w *world) cpu(name, node string, priority int) *world {
	fmt.Fprintf(&w.text, `- apiVersion: v1
  kind: Pod
  metadata: {namespace: other, name: %s, uid: %[1]s}
  spec: {nodeName: %s, priority: %d, containers: [{name: c, resources: {requests: {cpu: 4}}}]}
`, name, node, priority)
	return w
}

// waits is the pod that asks for devices.
func (w *world) waits(devices int, more string) *world {
	fmt.Fprintf(&w.text, `- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {namespace: team, name: wanted, uid: wanted}
  spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, count: %d}}]}}
- apiVersion: v1
  kind: Pod
  metadata: {namespace: team, name: waits, uid: waits}
  spec:
    priority: 100
    priorityClassName: urgent
    resourceClaims: [{name: gpu, resourceClaimName: wanted}]
    containers: [{name: c, resources: {requests: {cpu: 1}}}]
%s`, devices, more)
	return w
}

func (w *world) question(t *testing.T) reclaim.Question {
	t.Helper()
	text := "apiVersion: v1\nkind: List\nitems:\n" + head + w.text.String()
	s, problems, err := plan.Read([]plan.File{{Name: "world.yaml", Data: []byte(text)}}, "default")
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	q := reclaim.Question{Snapshot: s}
	for _, pod := range s.Pods {
		if pod.Name == "waits" {
			q.Pod = pod
		}
	}
	return q
}

func policyOf(name, pool string, priority int32, mode v1alpha1.ReclaimMode) v1alpha1.PartitionPolicy {
	p := v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority, p.Spec.Nodes = priority, &v1alpha1.NodePartition{
		Reclaim:         mode,
		PriorityClasses: []v1alpha1.NodePriorityClass{{Name: "urgent", Value: 100, ReclaimNamespaces: []string{"team"}}},
	}
	if pool != "" {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
	}
	return p
}

func TestDecide(t *testing.T) {
	gpus := []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
	const daemon = ", ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d, controller: true}]"
	const deleted = ", deletionTimestamp: 2026-01-01T00:00:00Z, finalizers: [a.io/b]"
	start := func() *world { return &world{} }
	two := func() *world { return start().node("n1", "gpus", 2) }
	for _, test := range []struct {
		name     string
		world    *world
		policies []v1alpha1.PartitionPolicy
		spared   string
		busy     bool
		want     string
	}{
		{name: "a device is free", world: two().holder("h", "n1", 1, "a", "").waits(1, ""), want: "fits"},
		{name: "one holder", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").waits(1, ""), want: "evict gpus n1 h"},
		{
			name: "the lowest priority", world: two().holder("p", "n1", 2, "a", "").holder("q", "n1", 1, "b", "").waits(1, ""),
			want: "evict gpus n1 q",
		},
		{
			name: "the youngest of equal priority",
			world: two().holder("p", "n1", 1, "a", ", creationTimestamp: 2026-01-01T00:00:00Z").
				holder("q", "n1", 1, "b", ", creationTimestamp: 2026-01-02T00:00:00Z").waits(1, ""),
			want: "evict gpus n1 q",
		},
		{
			name: "one pod with two devices, though two have a lower priority",
			world: start().node("n1", "gpus", 4).holder("p", "n1", 1, "a", "").holder("q", "n1", 1, "b", "").holder("r", "n1", 50, "cd", "").
				waits(2, ""),
			want: "evict gpus n1 r",
		},
		{name: "two pods", world: two().holder("p", "n1", 1, "a", "").holder("q", "n1", 2, "b", "").waits(2, ""), want: "evict gpus n1 p q"},
		{
			name: "two of three, with the lowest priorities",
			world: start().node("n1", "gpus", 3).holder("p", "n1", 9, "a", "").holder("q", "n1", 2, "b", "").
				holder("r", "n1", 3, "c", "").waits(2, ""),
			want: "evict gpus n1 q r",
		},
		{
			name: "the node with the smaller set",
			world: two().holder("p", "n1", 1, "a", "").holder("q", "n1", 1, "b", "").
				node("n2", "gpus", 2).holder("r", "n2", 99, "ab", "").waits(2, ""),
			want: "evict gpus n2 r",
		},
		{
			name: "only what is missing", world: start().node("n1", "gpus", 3).holder("p", "n1", 1, "a", "").
				holder("q", "n1", 1, "b", "").waits(2, ""),
			want: "evict gpus n1 p",
		},
		{name: "equal priority", world: start().node("n1", "gpus", 1).holder("h", "n1", 100, "a", "").waits(1, ""), want: "no-set"},
		{name: "higher priority", world: start().node("n1", "gpus", 1).holder("h", "n1", 101, "a", "").waits(1, ""), want: "no-set"},
		{name: "another policy's node", world: start().node("n1", "other", 1).holder("h", "n1", 1, "a", "").waits(1, ""), want: "no-set"},
		{
			name: "two devices of two policies' nodes do not help", policies: []v1alpha1.PartitionPolicy{
				policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict), policyOf("more", "more", 0, v1alpha1.ReclaimEvict),
			},
			world: start().node("n1", "gpus", 1).holder("p", "n1", 1, "a", "").node("n2", "more", 1).holder("q", "n2", 1, "a", "").
				waits(2, ""),
			want: "no-set",
		},
		{
			name: "a policy that says None counts first", policies: append(gpus, policyOf("none", "gpus", 1, v1alpha1.ReclaimNone)),
			world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").waits(1, ""), want: "no-set",
		},
		{name: "busy", busy: true, world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").waits(1, ""), want: "no-set"},
		{
			name: "a disruption budget keeps the first", spared: "q",
			world: two().holder("p", "n1", 2, "a", "").holder("q", "n1", 1, "b", "").waits(1, ""), want: "evict gpus n1 p",
		},
		{name: "a pod of a DaemonSet", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", daemon).waits(1, ""), want: "no-set"},
		{name: "a holder is being deleted", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", deleted).waits(1, ""), want: "ending"},
		{
			name: "all who share a claim", world: start().node("n1", "gpus", 1).claim("shared", "n1", "a", "p", "q").
				user("p", "n1", 1, "shared").user("q", "n1", 2, "shared").waits(1, ""),
			want: "evict gpus n1 p q",
		},
		{
			name: "one who shares a claim has a higher priority", world: start().node("n1", "gpus", 1).claim("shared", "n1", "a", "p", "q").
				user("p", "n1", 1, "shared").user("q", "n1", 200, "shared").waits(1, ""),
			want: "no-set",
		},
		{
			name:  "CPUs that Kubernetes takes from pods without devices",
			world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").cpu("cpu", "n1", 1).waits(1, ""), want: "evict gpus n1 h",
		},
		{
			name:  "CPUs of a pod with a higher priority",
			world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").cpu("cpu", "n1", 200).waits(1, ""), want: "no-set",
		},
		{
			name:  "a device is free, and only CPUs are missing, which Kubernetes preempts",
			world: start().node("n1", "gpus", 1).cpu("cpu", "n1", 1).waits(1, ""), want: "fits",
		},
		{
			name: "the pod selects another node", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").
				waits(1, "    nodeSelector: {pool: other}\n"), want: "no-set",
		},
		{
			name: "more devices than a node has", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").waits(2, ""), want: "no-set",
		},
		{
			name: "what the planner does not look at", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").
				waits(1, "    volumes: [{name: v, persistentVolumeClaim: {claimName: v}}]\n"), want: "unjudged",
		},
		{
			name: "another node may have a free device in a slice that is still to come", world: start().node("n1", "gpus", 1).
				holder("h", "n1", 1, "a", "").half("n2").waits(1, ""), want: "unjudged",
		},
		{
			name: "a node that the pod does not select publishes", world: start().node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").half("n2").
				waits(1, "    nodeSelector: {pool: gpus}\n"), want: "evict gpus n1 h",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := test.world.question(t)
			if q.Policies = test.policies; q.Policies == nil {
				q.Policies = gpus
			}
			q.Spared = func(pod *corev1.Pod) bool { return pod.Name == test.spared }
			q.Busy = func(string) bool { return test.busy }
			got, err := reclaim.Decide(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			text := string(got.Outcome)
			if got.Outcome == reclaim.Evict {
				text += " " + got.Policy + " " + got.Node
			}
			for _, pod := range got.Victims {
				text += " " + pod.Name
			}
			if text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}

// TestWhoReclaims: pods of other classes or namespaces than the policy of the node names have no pods evicted, whatever their priority.
func TestWhoReclaims(t *testing.T) {
	w := (&world{}).node("n1", "gpus", 1).holder("h", "n1", 1, "a", "").node("n2", "others", 1).holder("low", "n2", 0, "a", "")
	asked := w.waits(1, "").question(t)
	others := policyOf("others", "others", 0, v1alpha1.ReclaimEvict)
	others.Spec.Nodes.PriorityClasses = nil
	everybody := policyOf("gpus", "gpus", 1, v1alpha1.ReclaimEvict)
	everybody.Spec.Nodes.PriorityClasses[0].ReclaimNamespaces = []string{"*"}
	nobody := policyOf("gpus", "gpus", 1, v1alpha1.ReclaimEvict)
	nobody.Spec.Nodes.PriorityClasses[0].ReclaimNamespaces = nil
	for name, test := range map[string]struct {
		namespace, class string
		priority         int32
		policies         []v1alpha1.PartitionPolicy
		want             string
	}{
		"listed":                                    {"team", "urgent", 100, nil, "evict h"},
		"another tenant names the class":            {"stranger", "urgent", 100, nil, "no-set"},
		"a tenant names the class of Kubernetes":    {"team", "system-node-critical", 2000001000, nil, "no-set"},
		"a tenant names the class of Fettle itself": {"team", "fettle-kubeletplugin", 1000000, nil, "no-set"},
		"no class":                             {"team", "", 100, nil, "no-set"},
		"made when the class had a higher one": {"team", "urgent", 1000, nil, "no-set"},
		"all namespaces":                       {"stranger", "urgent", 100, []v1alpha1.PartitionPolicy{everybody}, "evict h"},
		"no namespace":                         {"team", "urgent", 100, []v1alpha1.PartitionPolicy{nobody}, "no-set"},
	} {
		q := asked
		if q.Policies = test.policies; q.Policies == nil {
			q.Policies = []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
		}
		q.Policies = append(q.Policies, others)
		pod := q.Pod.DeepCopy()
		pod.Namespace, pod.Spec.PriorityClassName, pod.Spec.Priority = test.namespace, test.class, &test.priority
		q.Snapshot.Claims = slices.Clone(q.Snapshot.Claims)
		for i, claim := range q.Snapshot.Claims {
			if claim.Name == "wanted" {
				q.Snapshot.Claims[i] = claim.DeepCopy()
				q.Snapshot.Claims[i].Namespace = test.namespace
			}
		}
		q.Pod = pod
		if got := answer(t, t.Context(), q); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		if allowed := reclaim.Allowed(q.Policies, pod); allowed != (test.want != "no-set") {
			t.Errorf("%s: allowed: %t", name, allowed)
		}
	}
}

// TestMany: with more sets than are tried one by one, none of the set can be left out.
func TestMany(t *testing.T) {
	const n = 14
	w := (&world{}).node("n1", "", n)
	for i := range n {
		w.holder(fmt.Sprintf("h%02d", i), "n1", i, string(rune('a'+i)), "")
	}
	q := w.waits(7, "").question(t)
	q.Policies = []v1alpha1.PartitionPolicy{policyOf("all", "", 0, v1alpha1.ReclaimEvict)}
	got, err := reclaim.Decide(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Victims) != 7 || got.Victims[6].Name != "h06" {
		t.Errorf("%d pods: %v", len(got.Victims), got)
	}
}

// TestStopped: whenever the context ends, the answer is an error that says so, or the one of an undisturbed search.
func TestStopped(t *testing.T) {
	w := (&world{}).node("n1", "gpus", 8)
	for i := range 8 {
		w.holder(fmt.Sprintf("h%d", i), "n1", 10*i, string(rune('a'+i)), "")
	}
	q := w.waits(3, "").question(t)
	q.Policies = []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
	start := time.Now()
	want := answer(t, t.Context(), q)
	took := time.Since(start)
	if want != "evict h0 h1 h2" {
		t.Fatalf("undisturbed: %s", want)
	}
	enough := errors.New("enough")
	stopped := "the search for pods to evict was stopped: enough"
	t.Run("before the first node", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		q := q
		q.Busy = func(string) bool { stop(enough); return false }
		if got := answer(t, ctx, q); got != "node n1: "+stopped {
			t.Errorf("got %q", got)
		}
	})
	t.Run("at any time", func(t *testing.T) {
		random := seed.New(t)
		for range 50 {
			ctx, stop := context.WithTimeoutCause(t.Context(), time.Duration(random.Int64N(int64(took))), enough)
			if got := answer(t, ctx, q); got != want && !strings.HasSuffix(got, stopped) {
				t.Errorf("got %q", got)
			}
			stop()
		}
	})
	t.Run("time limit", func(t *testing.T) {
		random, q := seed.New(t), q
		for range 50 {
			q.Timeout = time.Duration(1 + random.Int64N(int64(took)))
			if got := answer(t, t.Context(), q); got != want && got != "unjudged" {
				t.Errorf("with %s got %q", q.Timeout, got)
			}
		}
	})
}

// answer is the outcome and the victims, or the error.
func answer(t *testing.T, ctx context.Context, q reclaim.Question) string { //nolint:revive // as all helpers
	t.Helper()
	d, err := reclaim.Decide(ctx, q)
	if err != nil {
		return err.Error()
	}
	text := string(d.Outcome)
	for _, pod := range d.Victims {
		text += " " + pod.Name
	}
	return text
}

// TestSlow: if the search for one set of pods takes too long, no larger set of the node is evicted in its place. Other nodes count.
func TestSlow(t *testing.T) {
	const n = 16
	w := (&world{}).node("n1", "gpus", n)
	for i := range n {
		w.holder(fmt.Sprintf("h%02d", i), "n1", i, string(rune('a'+i)), "")
	}
	q := w.node("n2", "", n).holder("other", "n2", 1, "abcdefghijklmnop", "").waits(1, "").question(t)
	q.Policies = []v1alpha1.PartitionPolicy{policyOf("gpus", "gpus", 0, v1alpha1.ReclaimEvict)}
	for _, claim := range q.Snapshot.Claims {
		if claim.Name == "wanted" { // requests of one device each, of which the allocator tries all orders
			requests := &claim.Spec.Devices.Requests
			for i := range n - 1 {
				(*requests) = append(*requests, *(*requests)[0].DeepCopy())
				(*requests)[i+1].Name = fmt.Sprintf("r%d", i)
			}
		}
	}
	if got := answer(t, t.Context(), q); got != "unjudged" {
		t.Errorf("got %q", got)
	}
	q.Policies = append(q.Policies, policyOf("more", "", 0, v1alpha1.ReclaimEvict))
	if got := answer(t, t.Context(), q); got != "evict other" {
		t.Errorf("with another node got %q", got)
	}
}

func TestEligible(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"waits":         {func(*corev1.Pod) {}, true},
		"too short":     {func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second)) }, false},
		"not seen":      {func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		"gated":         {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}} }, false},
		"another fault": {func(p *corev1.Pod) { p.Status.Conditions[0].Reason = "SchedulerError" }, false},
		"nominated":     {func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }, false},
		"scheduled":     {func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, false},
		"never":         {func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }, false},
		"preempts":      {func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority) }, true},
		"deleted":       {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }, false},
	} {
		pod := &corev1.Pod{}
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			LastTransitionTime: metav1.NewTime(now.Add(-reclaim.Patience)),
		}}
		test.change(pod)
		if got := reclaim.Eligible(pod, now); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestWanted: a policy that is being deleted, or says nothing of it, has no pods evicted.
func TestWanted(t *testing.T) {
	gone := policyOf("gone", "", 0, v1alpha1.ReclaimEvict)
	gone.DeletionTimestamp = ptr.To(metav1.Now())
	if reclaim.Wanted([]v1alpha1.PartitionPolicy{gone, policyOf("none", "", 0, v1alpha1.ReclaimNone), {}}) {
		t.Error("pods are evicted for no policy")
	}
	if !reclaim.Wanted([]v1alpha1.PartitionPolicy{gone, policyOf("all", "", 0, v1alpha1.ReclaimEvict)}) {
		t.Error("no pods are evicted for a policy that wants it")
	}
}

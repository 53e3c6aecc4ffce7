// SPDX-License-Identifier: Apache-2.0

package reclaims

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/large"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/selectable"
)

// world is a cluster of a fake client with a node of two GPUs, which low and middle hold.
type world struct {
	*reclaimer
	client   client.WithWatch
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	// kept are the pods of which the API server refuses the eviction: the names, with "real" those that it refuses after a dry run.
	kept map[string]string
	// silent are the pods of which the API server does not say whether they would be evicted: what it says instead.
	silent map[string]error
	// asked is called when the API server is asked whether it would evict a pod.
	asked func()
	// evicted are the pods that were evicted, lists counts the lists of ResourceSlices.
	evicted []string
	lists   int
	// graces are the seconds to end that evictions name, by pod.
	graces map[string]int64
	// again changes the waiting pod when it is read again, just before the evictions.
	again func(*unstructured.Unstructured)
}

func newWorld(t *testing.T, mode v1alpha1.ReclaimMode) *world {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), recorder: events.NewFakeRecorder(100), kept: map[string]string{},
	}
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}}
	p.Spec.Nodes = &v1alpha1.NodePartition{Reclaim: mode, PriorityClasses: []v1alpha1.NodePriorityClass{
		{Name: "p1000", Value: 1000, ReclaimNamespaces: []string{"team", "greedy"}},
		{Name: "p2000", Value: 2000, ReclaimNamespaces: []string{"team", "greedy"}},
	}}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.fettle.dev"}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "fettle.dev", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "low"}, {Name: "middle"}},
	}}
	objects := []client.Object{p, class, slice, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	objects = append(objects, w.pod("other", "low", 10, "n1")...)
	objects = append(objects, w.pod("team", "middle", 20, "n1")...)
	w.graces = map[string]int64{}
	w.client = selectable.Fields(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if _, slices := list.(*resourceapi.ResourceSliceList); slices {
					w.lists++
				}
				err := c.List(ctx, list, options...)
				if pods, is := list.(*unstructured.UnstructuredList); is && w.again != nil && pods.GetKind() == "PodList" && len(pods.Items) > 0 {
					w.again(&pods.Items[0])
				}
				return err
			},
			SubResourceCreate: w.evict,
		}).Build()
	services := reconciler.Services{
		Live: large.Paged(t, w.client, reconciler.TenantPage), Client: w.client, Recorder: w.recorder, Clock: w.clock,
	}
	row := New(services, true, DefaultGrace, func() (string, error) { return "1.37", nil })
	w.reclaimer, _ = row.Queues[0].Reconciler.(*reclaimer)
	return w
}

// evict does what the API server does with an eviction.
func (w *world) evict(
	ctx context.Context, c client.Client, _ string, pod, eviction client.Object, options ...client.SubResourceCreateOption,
) error {
	if e, is := eviction.(*policyv1.Eviction); is && e.DeleteOptions.GracePeriodSeconds != nil {
		w.graces[pod.GetName()] = *e.DeleteOptions.GracePeriodSeconds
	}
	dry := slices.Contains(options, client.SubResourceCreateOption(client.DryRunAll))
	if dry && w.asked != nil {
		w.asked()
	}
	if err := w.silent[pod.GetName()]; err != nil && dry {
		return err
	}
	if how, kept := w.kept[pod.GetName()]; kept && dry == (how == "") {
		refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
		return refused
	}
	if dry {
		return nil
	}
	w.evicted = append(w.evicted, pod.GetName())
	return c.Delete(ctx, pod)
}

// pod is a pod and its claim, with the device of its name if it has a node.
func (w *world) pod(namespace, name string, priority int32, node string) []client.Object {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("claim-" + name)}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{objects.Request("gpu", "gpu.fettle.dev")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
	pod.Spec = corev1.PodSpec{
		NodeName: node, Priority: ptr.To(priority), PriorityClassName: fmt.Sprintf("p%d", priority), Containers: []corev1.Container{{Name: "c"}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(name)}},
	}
	if node == "" {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			LastTransitionTime: metav1.NewTime(w.clock.Now().Add(-time.Minute)),
		}}
		return []client.Object{pod, claim}
	}
	claim.Status.ReservedFor = objects.ReservedFor(name, pod.UID)
	claim.Status.Allocation = objects.Allocation(objects.Result("gpu", "fettle.dev", node, name))
	return []client.Object{pod, claim}
}

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// pass does rounds until a time has gone by, and returns the Events of it.
func (w *world) pass(t *testing.T, d time.Duration) (said []string) {
	t.Helper()
	for end := w.clock.Now().Add(d); ; w.clock.SetTime(w.clock.Now().Add(interval)) {
		if _, err := w.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		if !w.clock.Now().Before(end) {
			break
		}
	}
	for {
		select {
		case event := <-w.recorder.Events:
			said = append(said, event)
		default:
			return said
		}
	}
}

func (w *world) wantEvicted(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(w.evicted, want) {
		t.Errorf("evicted %q, want %q", w.evicted, want)
	}
}

// TestReclaim: the pod with the lowest priority makes way, and both pods learn it, without the name of a pod of another namespace.
func TestReclaim(t *testing.T) {
	w := newWorld(t, v1alpha1.ReclaimEvict)
	w.create(t, w.pod("team", "waits", 1000, "")...)
	said := w.pass(t, 0)
	w.wantEvicted(t, "low")
	want := []string{
		"Warning EvictedForPriority evicted, since a pod with priority 1000 waits for the devices of this one, which has priority 10: " +
			"PartitionPolicy gpus has devices reclaimed on node n1",
		"Normal DevicesReclaimed 1 pod with a lower priority on node n1 evicted, as PartitionPolicy gpus has it: the devices are free when " +
			"they have ended",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestUnjudged: no pod is evicted for one of which it is not known whether it would run then, which is told once; nor for one that does not
// wait any more, or that pods of other nodes keep from the zone.
func TestUnjudged(t *testing.T) {
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name  string
		pod   func(*corev1.Pod)
		again func(*unstructured.Unstructured)
		says  string
	}{
		{name: "a volume", pod: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v"},
			}}}
		}, says: "ReclaimUnjudged no pods with a lower priority are evicted for this one, since it is not known whether it would run then: " +
			"spec.volumes[].persistentVolumeClaim is not looked at"},
		{
			name: "a field of a later Kubernetes", again: set("x", "spec", "madeLater"),
			says: `ReclaimUnjudged no pods with a lower priority are evicted for this one, since it is not known whether it would run then: ` +
				`unknown field "spec.madeLater"`,
		},
		{name: "it has a node by now", again: set("n2", "spec", "nodeName")},
		{name: "it is another by now", again: set("other", "metadata", "uid")},
		{name: "a pod of another node keeps it from the zone", pod: func(p *corev1.Pod) { p.Labels = map[string]string{"app": "repelled"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			var n1 corev1.Node
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n1); err != nil {
				t.Fatal(err)
			}
			n1.Labels = map[string]string{"zone": "z"}
			if err := w.client.Update(t.Context(), &n1); err != nil {
				t.Fatal(err)
			}
			lonely := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lonely", UID: "lonely"}}
			lonely.Spec.NodeName = "cpus"
			lonely.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "repelled"}},
				}},
			}}
			w.create(t, lonely, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpus", Labels: map[string]string{"zone": "z"}}})
			objects := w.pod("team", "waits", 1000, "")
			if pod, is := objects[0].(*corev1.Pod); is && test.pod != nil {
				test.pod(pod)
			}
			w.create(t, objects...)
			w.again = test.again
			said := strings.Join(w.pass(t, 10*time.Minute), "\n")
			w.wantEvicted(t)
			if said != strings.TrimSuffix("Warning "+test.says, "Warning ") {
				t.Errorf("said %q, want %q", said, test.says)
			}
		})
	}
}

// TestTooLarge: where the cluster's objects, or the pod's own, are larger than what is kept, no pod is evicted, the waiting pod learns it
// once, and it is counted.
func TestTooLarge(t *testing.T) {
	for name, enlarge := range map[string]func(*world, *resourceapi.ResourceClaim){
		"cluster": func(w *world, _ *resourceapi.ResourceClaim) {
			for i := range 10 {
				n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
				n.Labels = map[string]string{"l": strings.Repeat("l", 1<<20)}
				w.create(t, n)
			}
		},
		"pod": func(_ *world, claim *resourceapi.ResourceClaim) {
			r := objects.Request("large", "gpu.fettle.dev", strings.Repeat("x", 300<<10))
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			made := w.pod("team", "waits", 1000, "")
			claim, _ := made[1].(*resourceapi.ResourceClaim)
			enlarge(w, claim)
			w.create(t, made...)
			said := w.pass(t, 5*time.Minute)
			w.wantEvicted(t)
			if len(said) != 1 || !strings.Contains(said[0], "ReclaimUnjudged") || !strings.Contains(said[0], "larger than the controller keeps") {
				t.Errorf("said %q", said)
			}
			if got := testutil.ToFloat64(w.pods.WithLabelValues("unjudged")); got != 1 {
				t.Errorf("%v pods are counted as not judged", got)
			}
		})
	}
}

// TestManyNodes: of a cluster with many nodes those with a policy for evictions are looked at. A pod of a node that is not looked at keeps
// the waiting pod from their zone all the same.
func TestManyNodes(t *testing.T) {
	for app, evicted := range map[string][]string{"free": {"low"}, "repelled": nil} {
		w := newWorld(t, v1alpha1.ReclaimEvict)
		var p v1alpha1.PartitionPolicy
		check.Must(t, w.client.Get(t.Context(), client.ObjectKey{Name: "gpus"}, &p))
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"reclaim": "yes"}}
		check.Must(t, w.client.Update(t.Context(), &p))
		var n1 corev1.Node
		check.Must(t, w.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n1))
		n1.Labels = map[string]string{"zone": "z", "reclaim": "yes"}
		check.Must(t, w.client.Update(t.Context(), &n1))
		for i := range 200 {
			name := fmt.Sprintf("a-%03d", i)
			node := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
			node.Status.Pools = []v1alpha1.PoolStatus{{Kind: "gpu", Devices: 2}}
			w.create(t, node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "z"}}})
		}
		node := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		node.Status.Pools = []v1alpha1.PoolStatus{{Kind: "gpu", Devices: 2}}
		lonely := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lonely", UID: "lonely"}}
		lonely.Spec.NodeName = "a-199"
		lonely.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "repelled"}},
			}},
		}}
		waits := w.pod("team", "waits", 1000, "")
		waits[0].SetLabels(map[string]string{"app": app})
		w.create(t, append(waits, lonely, node)...)
		w.pass(t, 0)
		if w.wantEvicted(t, evicted...); w.lists != 101 {
			t.Errorf("slices were listed %d times", w.lists)
		}
	}
}

// TestPace: one reclaim at a time, the pod with the highest priority first, and not again within a minute.
func TestPace(t *testing.T) {
	w := newWorld(t, v1alpha1.ReclaimEvict)
	w.create(t, w.pod("team", "waits", 1000, "")...)
	w.create(t, w.pod("team", "first", 2000, "")...)
	said := w.pass(t, 45*time.Second)
	w.wantEvicted(t, "low")
	if text := strings.Join(said, "\n"); !strings.Contains(text, "priority 2000") || len(said) != 2 {
		t.Errorf("said %q", said)
	}
	// The first takes the device, and the claims of low are gone. Then it is the other's turn.
	w.drop(t, "other", "low")
	w.drop(t, "team", "first")
	w.create(t, w.pod("team", "first", 2000, "n1")...)
	w.rename(t, "first", "low")
	if said = w.pass(t, 2*time.Minute); !strings.Contains(strings.Join(said, "\n"), "pod waits with priority 1000") {
		t.Errorf("a pod of the same namespace is not named: %q", said)
	}
	w.wantEvicted(t, "low", "middle")
}

func (w *world) drop(t *testing.T, namespace, name string) {
	t.Helper()
	for _, o := range []client.Object{&corev1.Pod{}, &resourceapi.ResourceClaim{}} {
		o.SetNamespace(namespace)
		o.SetName(name)
		if err := client.IgnoreNotFound(w.client.Delete(t.Context(), o)); err != nil {
			t.Fatal(err)
		}
	}
}

// rename gives a claim another device.
func (w *world) rename(t *testing.T, claim, device string) {
	t.Helper()
	var c resourceapi.ResourceClaim
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: claim}, &c); err != nil {
		t.Fatal(err)
	}
	c.Status.Allocation.Devices.Results[0].Device = device
	if err := w.client.Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
}

// TestTurns: pods that nothing helps keep no others waiting, whatever their number and priority: neither those of another namespace, at
// all, nor those of their own, for longer than it takes to judge each once. To make them again gains nothing.
func TestTurns(t *testing.T) {
	hopeless := func(w *world, namespace, name string) []client.Object {
		objects := w.pod(namespace, name, 2000, "")
		claim, _ := objects[1].(*resourceapi.ResourceClaim)
		claim.Spec.Devices.Requests[0].Exactly.Count = 100
		return objects
	}
	for _, test := range []struct {
		namespace string
		many      int
		within    time.Duration
	}{
		{"greedy", 25, 0},
		{"team", 12, 2 * interval},
	} {
		w := newWorld(t, v1alpha1.ReclaimEvict)
		for i := range test.many {
			w.create(t, hopeless(w, test.namespace, fmt.Sprintf("hopeless-%d", i))...)
		}
		w.create(t, w.pod("team", "waits", 1000, "")...)
		w.pass(t, test.within)
		w.wantEvicted(t, "low")
	}

	var l ledger
	start := time.Unix(1e9, 0)
	made := func(namespace string, n int) (pods []*corev1.Pod) {
		for i := range n {
			pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprint(i), UID: types.UID(fmt.Sprintf("%s-%d-%d", namespace, i, len(l.turns))),
			}})
		}
		return pods
	}
	var turns []string
	for round := range 4 {
		now := start.Add(time.Duration(round) * interval)
		pods := append(made("greedy", 4), slices.Concat(made("a", 1), made("b", 1), made("c", 1))...)
		l.retain(pods[:4], now) // the pods of greedy are new ones each round
		for _, pod := range l.next(pods, 2) {
			l.judged(pod, now)
			turns = append(turns, pod.Namespace)
		}
	}
	if got, want := strings.Join(turns, " "), "greedy a b c greedy a b c"; got != want {
		t.Errorf("turns %s, want %s", got, want)
	}
}

// TestBudgets: pods that a PodDisruptionBudget keeps stay, another is taken, and no part of a set that is kept in part is evicted.
func TestBudgets(t *testing.T) {
	for _, test := range []struct {
		name    string
		kept    map[string]string
		devices int64
		want    []string
		says    string
	}{
		{name: "the other is taken", kept: map[string]string{"low": ""}, devices: 1, want: []string{"middle"}, says: "DevicesReclaimed"},
		{name: "all are kept", kept: map[string]string{"low": "", "middle": ""}, devices: 1, says: "ReclaimRefused PodDisruptionBudgets keep 2"},
		{name: "one of two is kept", kept: map[string]string{"middle": ""}, devices: 2, says: "ReclaimRefused PodDisruptionBudgets keep 1 pod"},
		{name: "two are taken", devices: 2, want: []string{"low", "middle"}, says: "DevicesReclaimed 2 pods"},
		{
			name: "the second is kept at the last moment", kept: map[string]string{"middle": "real"}, devices: 2, want: []string{"low"},
			says: "DevicesReclaimed 1 pod",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			w.kept = test.kept
			objects := w.pod("team", "waits", 1000, "")
			claim, _ := objects[1].(*resourceapi.ResourceClaim)
			claim.Spec.Devices.Requests[0].Exactly.Count = test.devices
			w.create(t, objects...)
			said := w.pass(t, 45*time.Second)
			w.wantEvicted(t, test.want...)
			if !strings.Contains(strings.Join(said, "\n"), test.says) || len(said) != max(1, len(test.want)+1) {
				t.Errorf("said %q", said)
			}
			if len(test.want) == 0 {
				if said := w.pass(t, 5*time.Minute); len(said) > 0 {
					t.Errorf("said again: %q", said)
				}
				w.kept = nil
				w.pass(t, 2*time.Minute)
				if len(w.evicted) == 0 {
					t.Error("it is not tried again once the budget allows it")
				}
			}
		})
	}
}

// TestNoAnswer: that the API server does not say whether it would evict a pod is no refusal: no other pod, with a higher priority, makes
// way for that. The waiting pod is told without what was asked about a pod of another namespace.
func TestNoAnswer(t *testing.T) {
	for name, err := range map[string]error{
		"a webhook does not answer": apierrors.NewInternalError(errors.New(`failed calling webhook "pods.example": EOF`)),
		"it is overloaded":          apierrors.NewServiceUnavailable("low is not asked for"),
		"it is not there":           &url.Error{Op: "Post", URL: "https://k/api/v1/namespaces/other/pods/low/eviction", Err: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			w.silent = map[string]error{"low": err}
			w.create(t, w.pod("team", "waits", 1000, "")...)
			said := w.pass(t, 45*time.Second)
			w.wantEvicted(t)
			if len(said) != 1 || !strings.Contains(said[0], ReasonUnjudged) || strings.Contains(said[0], "other") {
				t.Errorf("said %q", said)
			}
			w.silent = nil
			w.pass(t, 30*time.Second)
			w.wantEvicted(t, "low")
		})
	}
}

// TestTakenBack: what is taken back while a decision is made, the policy's word or the node's label that it goes by, has nobody evicted.
func TestTakenBack(t *testing.T) {
	for name, change := range map[string]func(p *v1alpha1.PartitionPolicy, n *corev1.Node){
		"the policy": func(p *v1alpha1.PartitionPolicy, _ *corev1.Node) { p.Spec.Nodes.Reclaim = v1alpha1.ReclaimNone },
		"the namespace": func(p *v1alpha1.PartitionPolicy, _ *corev1.Node) {
			p.Spec.Nodes.PriorityClasses[0].ReclaimNamespaces = nil
		},
		"the node's label": func(_ *v1alpha1.PartitionPolicy, n *corev1.Node) { n.Labels["pool"] = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			var p v1alpha1.PartitionPolicy
			var n corev1.Node
			check.Must(t, w.client.Get(t.Context(), client.ObjectKey{Name: "gpus"}, &p))
			p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
			check.Must(t, w.client.Update(t.Context(), &p))
			check.Must(t, w.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n))
			n.Labels = map[string]string{"pool": "a"}
			check.Must(t, w.client.Update(t.Context(), &n))
			w.create(t, w.pod("team", "waits", 1000, "")...)
			w.asked = func() {
				change(&p, &n)
				check.Must(t, w.client.Update(t.Context(), &p))
				check.Must(t, w.client.Update(t.Context(), &n))
				w.asked = nil
			}
			if said := w.pass(t, 0); len(said) > 0 || w.asked != nil {
				t.Errorf("said %q", said)
			}
			w.wantEvicted(t)
		})
	}
}

// TestGrace: a holder keeps its devices no longer than the administrator allows, by a long time to end or by deleting itself with one. A
// holder that ends sooner by itself keeps its own time.
func TestGrace(t *testing.T) {
	for name, test := range map[string]struct {
		own     *int64
		deleted *int64 // the time to end of the deletion
		ended   bool   // evicted
		given   int64
		says    string
	}{
		"the usual time":              {ended: true},
		"a shorter time":              {own: ptr.To[int64](299), ended: true},
		"ten days":                    {own: ptr.To[int64](864000), ended: true, given: 300, says: "; it has 5m0s to end and not 240h0m0s"},
		"for ever":                    {own: ptr.To[int64](math.MaxInt64), ended: true, given: 300, says: "; it has 5m0s to end and not"},
		"deleted itself for ten days": {deleted: ptr.To[int64](864000), ended: true, given: 300, says: "; it has 5m0s to end and not 240h0m0s"},
		"deleted, and ends soon":      {own: ptr.To[int64](864000), deleted: ptr.To[int64](300)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.ReclaimEvict)
			w.drop(t, "other", "low")
			objects := w.pod("other", "low", 10, "n1")
			low, _ := objects[0].(*corev1.Pod)
			low.Spec.TerminationGracePeriodSeconds = test.own
			if test.deleted != nil {
				low.Finalizers, low.DeletionGracePeriodSeconds = []string{"example.com/stays"}, test.deleted
			}
			w.create(t, objects...)
			if test.deleted != nil {
				if err := w.client.Delete(t.Context(), low); err != nil {
					t.Fatal(err)
				}
			}
			w.create(t, w.pod("team", "waits", 1000, "")...)
			said := w.pass(t, 0)
			if ended := slices.Equal(w.evicted, []string{"low"}); ended != test.ended || w.graces["low"] != test.given {
				t.Errorf("evicted %q, with %d seconds", w.evicted, w.graces["low"])
			}
			text := strings.Join(said, "\n")
			if strings.Contains(text, "to end and not") != (test.says != "") || !strings.Contains(text, test.says) {
				t.Errorf("said %q", text)
			}
		})
	}
}

// TestNeverEnds: a pod that is being deleted and does not end, as one with a process that the kernel cannot end, is waited for as long as
// one that was evicted. Then others make way, and it is not evicted again.
func TestNeverEnds(t *testing.T) {
	w := newWorld(t, v1alpha1.ReclaimEvict)
	w.drop(t, "other", "low")
	objects := w.pod("other", "low", 10, "n1")
	low, _ := objects[0].(*corev1.Pod)
	low.Finalizers, low.DeletionGracePeriodSeconds = []string{"example.com/stays"}, ptr.To[int64](30)
	w.create(t, objects...)
	if err := w.client.Delete(t.Context(), low); err != nil {
		t.Fatal(err)
	}
	w.clock.SetTime(time.Now())
	w.create(t, w.pod("team", "waits", 1000, "")...)
	w.pass(t, policyLimit-time.Minute)
	w.wantEvicted(t)
	w.pass(t, 3*time.Minute)
	w.wantEvicted(t, "middle")
}

// TestNothing: without a policy that wants it, or a pod that waits for it, nothing is read of the cluster.
func TestNothing(t *testing.T) {
	for name, test := range map[string]struct {
		mode   v1alpha1.ReclaimMode
		change func(*corev1.Pod)
	}{
		"none":  {v1alpha1.ReclaimNone, func(*corev1.Pod) {}},
		"never": {v1alpha1.ReclaimEvict, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }},
		"young": {v1alpha1.ReclaimEvict, func(p *corev1.Pod) { p.Status.Conditions = nil }},
		"kept":  {v1alpha1.ReclaimEvict, func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }},
		"class of Kubernetes": {v1alpha1.ReclaimEvict, func(p *corev1.Pod) {
			p.Spec.PriorityClassName, p.Spec.Priority = "system-node-critical", ptr.To[int32](2000001000)
		}},
	} {
		w := newWorld(t, test.mode)
		objects := w.pod("team", "waits", 1000, "")
		pod, _ := objects[0].(*corev1.Pod)
		test.change(pod)
		w.create(t, objects...)
		if said := w.pass(t, time.Minute); len(said) > 0 || len(w.evicted) > 0 || w.lists > 0 {
			t.Errorf("%s: said %q, evicted %q, read slices %d times", name, said, w.evicted, w.lists)
		}
	}
}

// TestLedger: a pod for which devices were reclaimed in vain is served ever more seldom, and a policy waits for pods that do not end.
func TestLedger(t *testing.T) {
	var l ledger
	now := time.Unix(1e9, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "waits"}}
	var pauses []string
	for range 8 {
		l.reclaimed("gpus", pod, []types.UID{"gone"}, now)
		pauses = append(pauses, l.of(pod).next.Sub(now).String())
	}
	if got, want := fmt.Sprint(pauses), "[1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h0m0s 1h0m0s]"; got != want {
		t.Errorf("pauses %s, want %s", got, want)
	}
	there := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "gone"}}}
	for _, test := range []struct {
		policy string
		pods   []*corev1.Pod
		after  time.Duration
		want   bool
	}{
		{"gpus", nil, policyPause - 1, true},
		{"gpus", nil, policyPause, false},
		{"gpus", there, policyPause, true},
		{"gpus", there, policyLimit, false},
		{"other", there, 0, false},
	} {
		if got := l.busy(test.policy, test.pods, now.Add(test.after)); got != test.want {
			t.Errorf("%+v: busy %v", test, got)
		}
	}
	l.retain(nil, now)
	if !l.due(pod, now) {
		t.Error("a pod that does not wait any more is remembered")
	}
}

// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
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

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
	"github.com/fettle-dev/fettle/test/selectable"
)

// world is a cluster of a fake client, the reconciler and its clock.
type world struct {
	*explainer
	client   client.WithWatch
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	// lists counts the lists of ResourceSlices.
	lists int
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), recorder: events.NewFakeRecorder(1000)}
	w.client = selectable.Fields(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if _, slices := list.(*resourceapi.ResourceSliceList); slices {
					w.lists++
				}
				return c.List(ctx, list, options...)
			},
		}).Build()
	row := New(reconciler.Services{Live: w.client, Client: w.client, Recorder: w.recorder, Clock: w.clock}, Options{
		Enabled: true, Version: func() (string, error) { return "1.37", nil },
	})
	w.explainer, _ = row.Queues[0].Reconciler.(*explainer)
	return w
}

// pass lets time go by in rounds, and returns the Events of it.
func (w *world) pass(t *testing.T, d time.Duration) (said []string) {
	t.Helper()
	for end := w.clock.Now().Add(d); ; w.clock.SetTime(w.clock.Now().Add(interval)) {
		result, err := w.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || result.RequeueAfter != interval {
			t.Fatal(result, err)
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

func (w *world) pod(name, class string) []client.Object {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "research", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)),
		},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "c"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(name)}},
		},
	}
	return []client.Object{pod, claim("research", name, class)}
}

func claim(namespace, name, class string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{objects.Request("gpu", class)}
	return c
}

// oneGPU is a node with a GPU, which a claim of another namespace has, and two classes.
func oneGPU() []client.Object {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1-gpu"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "fettle.dev", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1/gpu", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu-0"}},
	}}
	holder := claim("secret-team", "secret-claim", "gpu.fettle.dev")
	holder.Status.Allocation = objects.Allocation(objects.Result("gpu", "fettle.dev", "n1/gpu", "gpu-0"))
	out := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, slice, holder}
	for name, driver := range map[string]string{"gpu.fettle.dev": "fettle.dev", "other": "other.example"} {
		class := objects.Class(name, fmt.Sprintf("device.driver == %q", driver))
		out = append(out, class)
	}
	return out
}

// TestEvents follows a pod from its first minute to the change of its reason.
func TestEvents(t *testing.T) {
	w := newWorld(t, oneGPU()...)
	for _, o := range append(w.pod("train", "gpu.fettle.dev"), w.pod("foreign", "other")...) {
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if said := w.pass(t, 20*time.Second); len(said) > 0 || w.lists > 0 {
		t.Errorf("said %q after 20 seconds, and read slices %d times", said, w.lists)
	}
	said := w.pass(t, 20*time.Second)
	want := []string{"Warning WaitingForDevices the only GPU that would do is on node n1, and is held: by a claim of another namespace. " +
		"Wait until that ends, or delete what is not needed"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("after 40 seconds (-want +got):\n%s", diff)
	}
	for reason, want := range map[string]float64{"held": 1, "taint": 0, unexplained: 0} {
		if got := testutil.ToFloat64(w.waiting.WithLabelValues(reason)); got != want {
			t.Errorf("%v pods wait for the reason %s, want %v", got, reason, want)
		}
	}
	if said := w.pass(t, 3*time.Minute); len(said) > 0 {
		t.Errorf("the same reason again: %q", said)
	}
	if w.lists > 5 {
		t.Errorf("slices were read %d times in 4 minutes", w.lists)
	}
	var class resourceapi.DeviceClass
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "gpu.fettle.dev"}, &class); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Delete(t.Context(), &class); err != nil {
		t.Fatal(err)
	}
	if said := w.pass(t, time.Minute); len(said) > 0 {
		t.Errorf("%q within %s of the last Event", said, podPause)
	}
	if said = w.pass(t, 2*time.Minute); len(said) != 1 || !strings.Contains(said[0], "DeviceClass gpu.fettle.dev is created") {
		t.Errorf("said %q after the class was deleted", said)
	}
	pod := w.pod("train", "gpu.fettle.dev")[0]
	if err := w.client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	w.pass(t, 0)
	if got := testutil.ToFloat64(w.waiting.WithLabelValues("class")); got != 0 {
		t.Errorf("%v pods wait after the pod is gone", got)
	}
}

// TestMany: a round explains few pods and the cluster gets few Events a minute, until all pods have one.
func TestMany(t *testing.T) {
	w := newWorld(t, oneGPU()...)
	const pods = 100
	for i := range pods {
		for _, o := range w.pod(fmt.Sprintf("train-%03d", i), "gpu.fettle.dev") {
			if err := w.client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	if said := w.pass(t, 0); len(said) != podsPerRound {
		t.Errorf("%d Events in a round, want %d", len(said), podsPerRound)
	}
	if got := testutil.ToFloat64(w.waiting.WithLabelValues(unexplained)); got != pods-podsPerRound {
		t.Errorf("%v pods are unexplained, want %d", got, pods-podsPerRound)
	}
	if said := w.pass(t, 10*time.Minute); len(said) != pods-podsPerRound {
		t.Errorf("%d Events in 10 minutes, want one for each of %d further pods", len(said), pods-podsPerRound)
	}
}

// TestTurns: neither the many pods of another namespace, nor those that wait for devices of another driver, keep a pod from its Event.
func TestTurns(t *testing.T) {
	w := newWorld(t, oneGPU()...)
	for i := range 3 * podsPerRound {
		for namespace, class := range map[string]string{"greedy": "gpu.fettle.dev", "others": "other"} {
			for _, o := range w.pod(fmt.Sprintf("a-%s-%03d", namespace, i), class) {
				o.SetNamespace(namespace)
				if err := w.client.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, o := range w.pod("train", "gpu.fettle.dev") {
		o.SetCreationTimestamp(metav1.NewTime(w.clock.Now().Add(time.Second)))
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	if said := w.pass(t, 0); len(said) != podsPerRound || w.ledger.entries["train"].reason == unexplained {
		t.Errorf("%d Events in a round, want %d, and one of them for the pod of the other namespace", len(said), podsPerRound)
	}
}

// TestNodesDiffer: a pod whose claims differ from node to node does not keep others from their Events. The devices that the pod asks for by
// an extended resource are on one node, and the other node has a device plugin for it and too few devices for the pod's own claim.
func TestNodesDiffer(t *testing.T) {
	w := newWorld(t, oneGPU()...)
	plugin := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a-plugin"}}
	plugin.Status.Allocatable = corev1.ResourceList{"example.com/gpu": resource.MustParse("8")}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "other.fettle.dev"}}
	class.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	differs := w.pod("differs", "gpu.fettle.dev")
	pod, _ := differs[0].(*corev1.Pod)
	pod.Spec.Containers[0].Resources.Requests = plugin.Status.Allocatable.DeepCopy()
	two, _ := differs[1].(*resourceapi.ResourceClaim)
	two.Spec.Devices.Requests = append(two.Spec.Devices.Requests, objects.Request("more", "gpu.fettle.dev"))
	for _, o := range slices.Concat([]client.Object{plugin, class}, differs, w.pod("train", "gpu.fettle.dev")) {
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if said := w.pass(t, time.Minute); len(said) != 2 {
		t.Errorf("%d Events for two pods: %q", len(said), said)
	}
}

// TestBudget: Events of the cluster are limited whatever the pods.
func TestBudget(t *testing.T) {
	var l ledger
	now := time.Unix(1e9, 0)
	posted := 0
	for i := range 100 {
		if l.mayPost(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}, "held", now) {
			posted++
		}
	}
	if posted != clusterBudget {
		t.Errorf("%d Events at once, want %d", posted, clusterBudget)
	}
	last := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "99"}}
	if !l.mayPost(last, "held", now.Add(budgetPeriod)) || l.mayPost(last, "held", now.Add(time.Hour)) {
		t.Error("want one Event after a while, and none of the same reason")
	}
}

// TestOff has no queue, and so no rights are used.
func TestOff(t *testing.T) {
	if row := New(reconciler.Services{}, Options{}); len(row.Queues) > 0 || len(row.Metrics) == 0 {
		t.Errorf("%+v", row)
	}
}

// asks says whether a pod asks for our devices.
func (w *world) asks(t *testing.T, pod *corev1.Pod) bool {
	t.Helper()
	devices, err := ReadDevices(t.Context(), w.client)
	check.Must(t, err)
	a, err := devices.Asker(t.Context(), w.client, pod)
	check.Must(t, err)
	return a != nil
}

// TestExtended finds pods that ask for devices by extended resources.
func TestExtended(t *testing.T) {
	objects := oneGPU()
	w := newWorld(t, objects...)
	for name, want := range map[corev1.ResourceName]bool{
		"deviceclass.resource.kubernetes.io/gpu.fettle.dev": true, "deviceclass.resource.kubernetes.io/other": false,
		"example.com/gpu": false, "cpu": false,
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{name: {}},
		}}}}}
		if got := w.asks(t, pod); got != want {
			t.Errorf("%s: ours is %t, want %t", name, got, want)
		}
	}
}

// TestAskedBy finds pods that ask for devices by a class, or by a selector of their own, in whichever quotes these name the driver.
func TestAskedBy(t *testing.T) {
	w := newWorld(t, append(oneGPU(), objects.Class("single", "device.driver == 'fettle.dev'"), objects.Class("any", "true"))...)
	asks := func(name, class, selector string) *corev1.Pod {
		made := w.pod(name, class)
		of, _ := made[1].(*resourceapi.ResourceClaim)
		of.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
		check.Must(t, w.client.Create(t.Context(), of))
		pod, _ := made[0].(*corev1.Pod)
		return pod
	}
	for pod, want := range map[*corev1.Pod]bool{
		asks("by-class", "single", "true"): true, asks("by-selector", "any", "device.driver == 'fettle.dev'"): true,
		asks("none", "any", "device.driver == 'other.example'"): false, asks("other", "other", "true"): false,
	} {
		if got := w.asks(t, pod); got != want {
			t.Errorf("%s: ours is %t, want %t", pod.Name, got, want)
		}
	}
}

// TestTaintRules: rules are read in the version that the cluster serves: v1beta2 in Kubernetes 1.36, v1alpha3 before.
func TestTaintRules(t *testing.T) {
	for _, served := range []string{"v1", "v1beta2", "v1alpha3", ""} {
		scheme, err := reconciler.Scheme()
		if err != nil {
			t.Fatal(err)
		}
		live := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				kind := list.GetObjectKind().GroupVersionKind()
				of, rules := list.(*unstructured.UnstructuredList)
				switch {
				case !rules:
					return nil
				case kind.Version != served:
					return &apimeta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
				}
				of.Items = []unstructured.Unstructured{{Object: map[string]any{
					"metadata": map[string]any{"name": "broken"},
					"spec": map[string]any{
						"deviceSelector": map[string]any{"device": "gpu-0"}, "taint": map[string]any{"key": "broken", "effect": "NoSchedule"},
					},
				}}}
				return nil
			},
		}).Build()
		s, err := Reader{Live: live, Cached: live}.Read(t.Context(), &Devices{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, rule := range s.TaintRules {
			got = append(got, rule.Name+" "+*rule.Spec.DeviceSelector.Device+" "+rule.Spec.Taint.Key)
		}
		want := []string{"broken gpu-0 broken"}
		if served == "" {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is served: rules %q, want %q", served, got, want)
		}
	}
}

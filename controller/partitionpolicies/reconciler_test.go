// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/status"
)

func cluster(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.PartitionPolicy{}, &v1alpha1.AcceleratorNode{}).Build()
}

func dynamic(name string) *v1alpha1.PartitionPolicy {
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation}}
	p.Spec.Devices.NVIDIA = &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{Mode: v1alpha1.MIGDynamic}}
	return p
}

// told returns the Events since the last call: "Warning Invalid".
func told(recorder *events.FakeRecorder) (out []string) {
	for {
		select {
		case e := <-recorder.Events:
			out = append(out, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return out
		}
	}
}

// TestReconcile: the status follows the policy and the nodes, is written only if it changed, and an Event says when the policy became
// invalid.
func TestReconcile(t *testing.T) {
	p := dynamic("p")
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	a.Status.PartitionPolicies = []says{{Name: "p", Generation: generation, Devices: 2, Waiting: 1, Reason: "InUse"}}
	api, recorder := cluster(t, p, a, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}), events.NewFakeRecorder(100)
	r := New(reconciler.Services{
		Client: api, Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}, true, nil, nil).Queues[0].Reconciler
	expect := func(what string, written bool, valid, applied string, want ...string) {
		t.Helper()
		before := p.ResourceVersion
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)}); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[string]string{v1alpha1.ConditionValid: valid, v1alpha1.ConditionApplied: applied} {
			c := status.Condition(p.Status.Conditions, kind)
			if string(c.Status)+" "+c.Reason != want || c.ObservedGeneration != p.Generation || p.Status.Devices != 2 {
				t.Errorf("%s: %+v, want %s", what, c, want)
			}
		}
		if (p.ResourceVersion != before) != written {
			t.Errorf("%s: the status was written: %t", what, !written)
		}
		if diff := cmp.Diff(want, told(recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", what, diff)
		}
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	expect("one waits", true, "True Valid", "False InUse")
	expect("the same", false, "True Valid", "False InUse")
	p.Generation, p.Spec.Devices.DeviceSelector = 4, &v1alpha1.PartitionDeviceSelector{CEL: "device.nothing"}
	if err := api.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	expect("CEL that does not compile", true, "False Invalid", "False NotValid", "Warning Invalid")
	first := status.Condition(p.Status.Conditions, v1alpha1.ConditionValid).Message
	if !strings.Contains(first, "spec.devices.deviceSelector.cel") || !strings.Contains(first, "undefined field") {
		t.Errorf("it says %q", first)
	}
	expect("the same", false, "False Invalid", "False NotValid")
	p.Generation, p.Spec.Devices.DeviceSelector.CEL = 5, "device.driver"
	if err := api.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	expect("wrong in another way", true, "False Invalid", "False NotValid", "Warning Invalid")
	p.Generation, p.Spec.Devices.DeviceSelector = generation, nil
	if err := api.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	expect("mended", true, "True Valid", "False InUse", "Normal Valid")
	if err := api.Delete(t.Context(), p.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)}); err != nil {
		t.Errorf("a policy that is gone: %v", err)
	}
}

// later is a queue that notes what comes after a while.
type later struct {
	reconciler.RequestQueue
	names []string
}

func (l *later) AddAfter(r reconcile.Request, after time.Duration) {
	if after == reconciler.Gathering {
		l.names = append(l.names, r.Name)
	}
}

// TestQueued: a node that reports something else of a policy queues that one; a node that comes, goes or gets other labels queues all.
func TestQueued(t *testing.T) {
	watches := New(reconciler.Services{Client: cluster(t, dynamic("p"), dynamic("q"))}, true, nil, nil).Queues[0].Watches
	node := func(reports ...says) *v1alpha1.AcceleratorNode {
		a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		a.Status.PartitionPolicies = reports
		return a
	}
	labelled := func(pool string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"pool": pool}}}
	}
	const reports, labels = 1, 3
	for _, test := range []struct {
		name        string
		watch       int
		before, now client.Object
		want        []string
	}{
		{"a node comes", reports, nil, node(), []string{"p", "q"}},
		{"a node goes", reports, node(), nil, []string{"p", "q"}},
		{"nothing new", reports, node(says{Name: "q", Devices: 1}), node(says{Name: "q", Devices: 1}), nil},
		{"another count", reports, node(says{Name: "q", Devices: 1}), node(says{Name: "q", Devices: 2}), []string{"q"}},
		{"no report any more", reports, node(says{Name: "q", Devices: 1}), node(), []string{"q"}},
		{"other labels", labels, labelled("a"), labelled("b"), []string{"p", "q"}},
		{"the same labels", labels, labelled("a"), labelled("a"), nil},
		{"a new Node", labels, nil, labelled("a"), []string{"p", "q"}},
	} {
		var q later
		w := watches[test.watch]
		switch {
		case test.before == nil:
			w.Handler.Create(t.Context(), event.CreateEvent{Object: test.now}, &q)
		case test.now == nil:
			w.Handler.Delete(t.Context(), event.DeleteEvent{Object: test.before}, &q)
		default:
			change := event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.now}
			if len(w.Predicates) == 0 || w.Predicates[0].Update(change) {
				w.Handler.Update(t.Context(), change, &q)
			}
		}
		if slices.Sort(q.names); !slices.Equal(q.names, test.want) {
			t.Errorf("%s: queued %q, want %q", test.name, q.names, test.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/test/check"
)

const name = "node-1"

func slice(of, driver string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: of, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: driver}}},
		Spec:       resourceapi.ResourceSliceSpec{Driver: driver, NodeName: new(name)},
	}
}

// asked is how often an API server was asked for something by itself.
func asked(client *fake.Clientset, verb, resource string) (n int) {
	for _, a := range client.Actions() {
		if a.Matches(verb, resource) {
			n++
		}
	}
	return n
}

// TestSlices: the slices of all drivers come from the API server until they are followed, and then are at hand.
func TestSlices(t *testing.T) {
	client := fake.NewClientset(slice("b", "other.example"), slice("a", "fettle.dev"))
	v, err := New(client, name, time.Minute, clocktesting.NewFakePassiveClock(time.Now()))
	check.Must(t, err)
	names := func() (out []string) {
		all, err := v.Slices(t.Context())
		check.Must(t, err)
		for i := range all {
			out = append(out, all[i].Name)
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{"a", "b"}) || asked(client, "list", "resourceslices") != 1 {
		t.Errorf("before it watches: %q after %d lists", got, asked(client, "list", "resourceslices"))
	}
	for _, a := range client.Actions() {
		if list, ok := a.(clienttesting.ListAction); ok && list.GetListRestrictions().Fields.String() != "spec.nodeName="+name {
			t.Errorf("it asks for %s", list.GetListRestrictions().Fields)
		}
	}
	var changes atomic.Int64
	v.OnSlices(func() { changes.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	stopped := v.Watch(ctx)
	defer stopped()
	defer cancel()
	check.Eventually(t, "it follows the API server", v.informer.Current)
	lists, before := asked(client, "list", "resourceslices"), changes.Load()
	_, err = client.ResourceV1().ResourceSlices().Create(t.Context(), slice("c", "fettle.dev"), metav1.CreateOptions{})
	check.Must(t, err)
	check.Eventually(t, "the new slice is seen", func() bool { return slices.Equal(names(), []string{"a", "b", "c"}) })
	check.Eventually(t, "and told of", func() bool { return changes.Load() > before })
	if n := asked(client, "list", "resourceslices"); n != lists {
		t.Errorf("%d more lists", n-lists)
	}
}

// TestNode: the Node is read again once it is old, and not at the same time as on other nodes.
func TestNode(t *testing.T) {
	const age = time.Minute
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	clock := clocktesting.NewFakePassiveClock(time.Now())
	v, err := New(client, name, age, clock)
	check.Must(t, err)
	begin := clock.Now()
	for range 20 {
		before := asked(client, "get", "nodes")
		for read := clock.Now(); asked(client, "get", "nodes") == before; clock.SetTime(clock.Now().Add(time.Second)) {
			node, err := v.Node(t.Context())
			check.Must(t, err)
			if node.Name != name {
				t.Fatalf("got %q", node.Name)
			}
			if clock.Since(read) > 2*age {
				t.Fatal("it is never read again")
			}
		}
	}
	if took := clock.Since(begin); took < 19*age || took > 19*age*6/5+20*time.Second {
		t.Errorf("20 reads took %s", took)
	}
}

// TestUnknown: what cannot be read is an error, not an empty node.
func TestUnknown(t *testing.T) {
	v, err := New(fake.NewClientset(), name, 0, clocktesting.NewFakePassiveClock(time.Now()))
	check.Must(t, err)
	if node, err := v.Node(t.Context()); err == nil {
		t.Errorf("got %v", node)
	}
}

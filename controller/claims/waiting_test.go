// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/waitlist"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// world is a cluster in which claims begin and end to wait, as the manager's cache shows it to the reconciler.
type world struct {
	t      *testing.T
	w      *waiting
	q      queue
	kube   client.Client
	claims map[string]*resourceapi.ResourceClaim
	writes int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	x := &world{t: t, claims: map[string]*resourceapi.ResourceClaim{}}
	x.kube = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			x.writes++
			return c.Patch(ctx, o, p, options...)
		},
	})
	x.w = newWaiting(reconciler.Services{Client: x.kube})
	return x
}

// becomes changes a claim; nil deletes it.
func (x *world) becomes(name string, now *resourceapi.ResourceClaim) {
	kept := func(c *resourceapi.ResourceClaim) client.Object {
		if c == nil {
			return nil
		}
		trimmed, err := trim(c)
		check.Must(x.t, err)
		object, _ := trimmed.(*resourceapi.ResourceClaim)
		return object
	}
	x.w.onClaim(x.t.Context(), &x.q, kept(x.claims[name]), kept(now))
	x.claims[name] = now
	if now == nil {
		delete(x.claims, name)
	}
}

// node makes an AcceleratorNode. If there is one, it is deleted first.
func (x *world) node(name string) {
	a := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	check.Must(x.t, client.IgnoreNotFound(x.kube.Delete(x.t.Context(), a)))
	a = &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	check.Must(x.t, x.kube.Create(x.t.Context(), a))
	onNode(x.t.Context(), &x.q, nil, a)
}

// settle reconciles what was added.
func (x *world) settle() {
	for _, name := range x.q.added {
		_, err := x.w.Reconcile(x.t.Context(), request(name))
		check.Must(x.t, err)
	}
	x.q.added = nil
}

// waitsFor makes a claim that waits for the nodes, and is ready on the others.
func waitsFor(name string, nodes map[string]bool) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: name[:1], Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		r := resourceapi.DeviceRequestAllocationResult{
			Driver: v1alpha1.DriverName, Pool: node + "/gpu", Device: "gpu0", BindingConditions: []string{"Ready"},
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
		if !nodes[node] {
			c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{
				Driver: r.Driver, Pool: r.Pool, Device: r.Device,
				Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}},
			})
		}
	}
	return c
}

// TestWaitingClaims: whatever claims and nodes do, each node is told in the end of the claims that wait for it, and of no other.
func TestWaitingClaims(t *testing.T) {
	r := seed.New(t)
	x := newWorld(t)
	nodes := []string{"n0", "n1", "n2"}
	for step := range 500 {
		name := fmt.Sprint(string(rune('a'+r.IntN(3))), r.IntN(4))
		switch r.IntN(8) {
		case 0:
			x.node(nodes[r.IntN(len(nodes))])
		case 1:
			x.becomes(name, nil)
		case 2:
			x.becomes(name, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: name[:1], Name: name}})
		default:
			on := map[string]bool{}
			for range 1 + r.IntN(2) {
				on[nodes[r.IntN(len(nodes))]] = r.IntN(2) == 0
			}
			x.becomes(name, waitsFor(name, on))
		}
		if r.IntN(3) > 0 {
			continue
		}
		x.settle()
		for _, node := range nodes {
			a := &v1alpha1.AcceleratorNode{}
			if err := x.kube.Get(t.Context(), client.ObjectKey{Name: node}, a); err != nil {
				continue
			}
			var want, got []string
			for _, c := range x.claims {
				if slices.Contains(waitsOn(c), node) {
					want = append(want, client.ObjectKeyFromObject(c).String())
				}
			}
			for _, key := range waitlist.Parse(named(a)) {
				got = append(got, key.String())
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: node %s is told of %v, want %v", step, node, got, want)
			}
		}
	}
}

// TestWaitingClaimsWriteLittle: a claim that goes on to wait, or never waits, has nothing written.
func TestWaitingClaimsWriteLittle(t *testing.T) {
	x := newWorld(t)
	x.node("n0")
	x.becomes("a", waitsFor("a", map[string]bool{"n0": false}))
	x.settle()
	if x.writes != 0 {
		t.Errorf("%d writes for a claim that never waits", x.writes)
	}
	for range 10 {
		x.becomes("b", waitsFor("b", map[string]bool{"n0": true}))
		x.settle()
	}
	if x.writes != 1 {
		t.Errorf("%d writes for a claim that goes on to wait, want 1", x.writes)
	}
	if len(x.w.byNode) != 1 {
		t.Errorf("waits are kept of %v", x.w.byNode)
	}
	x.becomes("b", nil)
	if len(x.w.byNode) != 0 {
		t.Errorf("waits are kept of %v", x.w.byNode)
	}
}

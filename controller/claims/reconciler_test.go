// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/objects"
)

// queue only remembers what was added.
type queue struct {
	reconciler.RequestQueue
	added []string
}

func (q *queue) Add(r reconcile.Request) { q.added = append(q.added, r.Name) }

func claimWith(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "hold", Labels: map[string]string{"a": "b"}}}
	if results != nil {
		c.Status.Allocation = objects.Allocation(results...)
	}
	return c
}

// TestEnqueue: a node is told of a claim that was deleted with an allocation, and of no other change.
func TestEnqueue(t *testing.T) {
	t.Parallel()
	ours := func(pool string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: "fettle.dev", Pool: pool, Device: "gpu0", Request: "gpu"}
	}
	theirs := resourceapi.DeviceRequestAllocationResult{Driver: "gpu.example.com", Pool: "node-9/gpu"}
	none := []resourceapi.DeviceRequestAllocationResult{}
	another := claimWith() // a watch that was cut tells of both as of a change
	another.UID = "another"
	for _, tt := range []struct {
		name        string
		before, now client.Object
		want        []string
	}{
		{name: "deleted while allocated", before: claimWith(ours("node-1/gpu"), ours("node-1/host"), theirs), want: []string{"node-1"}},
		{name: "two nodes", before: claimWith(ours("node-1/gpu"), ours("node-2/gpu")), want: []string{"node-1", "node-2"}},
		{name: "ended in the usual way", before: claimWith()},
		{name: "allocation of nothing", before: claimWith(none...)},
		{name: "another driver's", before: claimWith(theirs)},
		{name: "odd pool", before: claimWith(ours("pool"))},
		{name: "changed", before: claimWith(ours("node-1/gpu")), now: claimWith()},
		{name: "new", now: claimWith(ours("node-1/gpu"))},
		{name: "deleted while allocated, and made again", before: claimWith(ours("node-1/gpu")), now: another, want: []string{"node-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.before
			if c, ok := before.(*resourceapi.ResourceClaim); ok { // as the cache has it
				trimmed, err := trim(c)
				kept, isClaim := trimmed.(*resourceapi.ResourceClaim)
				if err != nil || !isClaim || kept.Labels != nil || kept.Name != c.Name {
					t.Fatalf("the cache has %+v, %v", trimmed, err)
				}
				before = kept
			}
			var q queue
			enqueueDeleted(context.Background(), &q, before, tt.now)
			if !slices.Equal(q.added, tt.want) {
				t.Errorf("told %v, want %v", q.added, tt.want)
			}
		})
	}
}

// TestTrimOthers: what is no claim stays as it is.
func TestTrimOthers(t *testing.T) {
	t.Parallel()
	if got, err := trim("x"); err != nil || got != "x" {
		t.Errorf("got %v, %v", got, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/equal"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/test/check"
)

// TestCloneShares: a cluster of slices that share maps has as many maps as these, of its own: what it clears is there in the slices.
func TestCloneShares(t *testing.T) {
	s, apart := migNodes(t, 3), migNodes(t, 3)
	var parts equal.Parts
	bytes := 0
	for _, slice := range s.Slices {
		bytes += parts.Share(slice)
	}
	if first := float64(bytes) / 3; first < 150_000 || first > 350_000 {
		t.Errorf("a node takes %.0f bytes", first)
	}
	s.Gates = map[string]bool{gates.PartitionableDevices: false, gates.ConsumableCapacity: false}
	c, _, err := plan.NewCluster(s)
	check.Must(t, err)
	if given, cloned := mapsOf(s.Slices), mapsOf(c.Slices); cloned > given {
		t.Errorf("%d maps in the cluster, %d in its slices", cloned, given)
	}
	if diff := cmp.Diff(apart.Slices, s.Slices, cmp.Comparer(func(a, b resource.Quantity) bool { return a == b })); diff != "" {
		t.Errorf("the slices were changed: %s", diff)
	}
}

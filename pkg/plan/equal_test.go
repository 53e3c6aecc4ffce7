// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/equal"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fleet"
)

// migNodes are nodes with eight divided GPUs each, on which a pod that wants eight instances finds seven.
func migNodes(t *testing.T, nodes int) plan.Snapshot {
	t.Helper()
	f, err := fleet.New("../..", t.TempDir())
	check.Must(t, err)
	pod, claim := fleet.Waiting("7g.80gb")
	s := plan.Snapshot{
		Pods: []*corev1.Pod{pod}, Claims: []*resourceapi.ResourceClaim{claim}, Classes: []*resourceapi.DeviceClass{fleet.Class()},
	}
	for i := range nodes {
		slices, err := f.Slices(i)
		check.Must(t, err)
		s.Nodes, s.Slices, s.Claims = append(s.Nodes, fleet.Node(i)), append(s.Slices, slices...), append(s.Claims, fleet.Holder(i))
	}
	return s
}

// TestEqual: slices that share equal parts are as they were, are planned as they were, and have a fraction of the maps.
func TestEqual(t *testing.T) {
	apart, shared := migNodes(t, 3), migNodes(t, 3)
	var parts equal.Parts
	for _, s := range shared.Slices {
		parts.Share(s)
	}
	if diff := cmp.Diff(apart.Slices, shared.Slices, cmp.Comparer(func(a, b resource.Quantity) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	// Of 208 devices, 64 differ by the card or the profile; capacities and counters are the same on all nodes.
	if a, s := mapsOf(apart.Slices), mapsOf(shared.Slices); a != 3*(208*3+8) || s > 3*64+250 {
		t.Errorf("%d maps, shared %d", a, s)
	}
	for name, off := range map[string]map[string]bool{
		"on": nil, "off": {gates.PartitionableDevices: false, gates.ConsumableCapacity: false},
	} {
		var reports []plan.Report
		for _, s := range []plan.Snapshot{apart, shared} {
			s.Gates = off
			cluster, _, err := plan.NewCluster(s)
			check.Must(t, err)
			report, err := plan.Run(t.Context(), cluster, cluster.Pending(), plan.Options{})
			check.Must(t, err)
			reports = append(reports, report)
		}
		if diff := cmp.Diff(reports[0], reports[1]); diff != "" {
			t.Errorf("gates %s: %s", name, diff)
		}
	}
}

// mapsOf counts the maps of slices, each once.
func mapsOf(slices []*resourceapi.ResourceSlice) int {
	seen := map[uintptr]bool{}
	note := func(m any) { seen[reflect.ValueOf(m).Pointer()] = true }
	for _, s := range slices {
		for _, set := range s.Spec.SharedCounters {
			note(set.Counters)
		}
		for _, d := range s.Spec.Devices {
			note(d.Attributes)
			note(d.Capacity)
			for _, c := range d.ConsumesCounters {
				note(c.Counters)
			}
		}
	}
	return len(seen)
}

// TestAdopt: a cluster that adopts a snapshot has its objects, and one that does not has its own.
func TestAdopt(t *testing.T) {
	s := migNodes(t, 1)
	own, _, err := plan.NewCluster(s)
	check.Must(t, err)
	adopted, _, err := plan.Adopt(s)
	check.Must(t, err)
	if own.Nodes[0] == s.Nodes[0] || adopted.Nodes[0] != s.Nodes[0] {
		t.Errorf("copied: %t, adopted: %t", own.Nodes[0] != s.Nodes[0], adopted.Nodes[0] == s.Nodes[0])
	}
}

// TestJudgeInput: a node is judged by its own pools and what is allocated of them, however many other nodes there are.
func TestJudgeInput(t *testing.T) {
	c, _, err := plan.NewCluster(migNodes(t, 3))
	check.Must(t, err)
	in := c.JudgeInput(c.Nodes[1], nil, c.Holders())
	if len(in.Slices) != fleet.SlicesPerNode || len(in.State.AllocatedDevices) != 1 || len(in.Holders) != 3 {
		t.Errorf("%d slices, %d allocated devices, %d holders", len(in.Slices), len(in.State.AllocatedDevices), len(in.Holders))
	}
	for _, s := range in.Slices {
		if *s.Spec.NodeName != fleet.Name(1) {
			t.Errorf("slice %s is of another node", s.Name)
		}
	}
}

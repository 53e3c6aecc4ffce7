// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fleet"
)

// fleetOf is a cluster of MIG nodes, on each of which a claim has one of the smallest instances, and a pod that wants eight devices of a
// profile.
func fleetOf(t testing.TB, nodes int, profile string) plan.Snapshot {
	t.Helper()
	f, err := fleet.New("../../..", t.TempDir())
	check.Must(t, err)
	s := plan.Snapshot{Classes: []*resourceapi.DeviceClass{fleet.Class()}}
	for i := range nodes {
		slices, err := f.Slices(i)
		check.Must(t, err)
		s.Nodes, s.Slices, s.Claims = append(s.Nodes, fleet.Node(i)), append(s.Slices, slices...), append(s.Claims, fleet.Holder(i))
	}
	pod, claim := fleet.Waiting(profile)
	s.Pods, s.Claims = []*corev1.Pod{pod}, append(s.Claims, claim)
	return s
}

// BenchmarkFleet explains a pod that fits none of 100 nodes with 208 devices each.
func BenchmarkFleet(b *testing.B) {
	for profile, reason := range map[string]explain.Reason{"7g.80gb": explain.Held, "1g.18gb": explain.Selector} {
		s := fleetOf(b, 100, profile)
		b.Run(profile, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, _, err := plan.NewCluster(s)
				check.Must(b, err)
				if e := explain.Pod(b.Context(), c, c.Pods[0], explain.Options{}); e.Reason != reason {
					b.Fatalf("%s: %s", e.Reason, e.First)
				}
			}
		})
	}
}

// TestParallel: several nodes at once are explained as one after the other.
func TestParallel(t *testing.T) {
	for _, profile := range []string{"7g.80gb", "1g.10gb", "1g.18gb"} {
		var explained []explain.Explanation
		for _, parallel := range []int{0, 4} {
			c, _, err := plan.NewCluster(fleetOf(t, 12, profile))
			check.Must(t, err)
			explained = append(explained, explain.Pod(t.Context(), c, c.Pods[0], explain.Options{Devices: true, Parallel: parallel}))
		}
		if diff := cmp.Diff(explained[0], explained[1]); diff != "" {
			t.Errorf("%s: %s", profile, diff)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestCandidates: of many nodes those are chosen on which a pod may be, each kind of hardware in its turn, and those of a policy first. A
// small cluster has all.
func TestCandidates(t *testing.T) {
	pod := func(pool string) Asker {
		return Asker{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": pool}}}}
	}
	for name, test := range map[string]struct {
		nodes  int
		askers []Asker
		first  func(map[string]string) bool
		// want are how many nodes of each kind are chosen, counted by the number of the node.
		want map[string]int
	}{
		"a small cluster":        {40, []Asker{pod("a")}, nil, map[string]int{"a big": 10, "a small": 10, "b big": 10, "b small": 10}},
		"may be on half of them": {400, []Asker{pod("a")}, nil, map[string]int{"a big": 50, "a small": 50}},
		"two pods": {
			400, []Asker{pod("a"), pod("b")}, nil, map[string]int{"a big": 25, "a small": 25, "b big": 25, "b small": 25},
		},
		"fewer than there may be": {120, []Asker{pod("a")}, nil, map[string]int{"a big": 30, "a small": 30, "b big": 20, "b small": 20}},
		"may be on none":          {400, []Asker{pod("c")}, nil, map[string]int{"a big": 25, "a small": 25, "b big": 25, "b small": 25}},
		"a policy": {
			360, []Asker{pod("a")}, func(l map[string]string) bool { return l["rare"] != "" }, map[string]int{"a big": 10, "a small": 90},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			kinds := map[string]string{}
			for i := range test.nodes {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%04d", i), Labels: map[string]string{"pool": "a"}}}
				size := "small"
				if i%4 >= 2 {
					node.Labels["pool"] = "b"
				}
				if i%2 == 1 {
					size = "big"
				}
				if size == "small" {
					node.Labels["rare"] = "yes"
				}
				kinds[node.Name] = node.Labels["pool"] + " " + size
				accelerators := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
				accelerators.Status.Pools = []v1alpha1.PoolStatus{{Kind: "gpu", Devices: int32(8)}}
				accelerators.Status.Summary = &v1alpha1.NodeSummary{Models: size}
				objects = append(objects, node, accelerators)
			}
			w := newWorld(t, objects...)
			chosen, all, err := Reader{Live: w.client, Cached: w.client}.candidates(t.Context(), test.askers, test.first)
			check.Must(t, err)
			got := map[string]int{}
			for _, node := range chosen {
				got[kinds[node]]++
			}
			different := slices.Compact(slices.Sorted(slices.Values(chosen)))
			if all != test.nodes || len(chosen) != min(test.nodes, maxNodes) || len(different) != len(chosen) {
				t.Errorf("%d of %d nodes", len(chosen), all)
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("chosen are %v, want %v", got, test.want)
			}
		})
	}
}

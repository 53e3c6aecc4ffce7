// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/fettle-dev/fettle/controller/placement"
)

// TestOn: pods go to the nodes and nowhere else, as the scheduler sees it, and none go anywhere without a node.
func TestOn(t *testing.T) {
	for _, nodes := range [][]string{nil, {"a"}, {"a", "b.example"}} {
		affinity := placement.On(nodes...)
		if diff := cmp.Diff(nodes, placement.Of(&corev1.Affinity{NodeAffinity: affinity})); diff != "" {
			t.Errorf("nodes (-want +got):\n%s", diff)
		}
		selector, err := nodeaffinity.NewNodeSelector(affinity.RequiredDuringSchedulingIgnoredDuringExecution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b.example", "c"} {
			want := false
			for _, n := range nodes {
				want = want || n == name
			}
			if got := selector.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); got != want {
				t.Errorf("pods for %v on node %s: %t", nodes, name, got)
			}
		}
	}
	if got := placement.Of(nil); got != nil {
		t.Errorf("without an affinity: %v", got)
	}
}

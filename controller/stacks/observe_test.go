// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/stack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestMissing: whatever is missing for a while, no node loses its driver: reports, pods of drivers, kernels in Nodes, and what the
// controller remembers. A node that is gone does, and so do all with a stack that selects others.
func TestMissing(t *testing.T) {
	for _, selector := range []string{"by labels", "by reports"} {
		t.Run(selector, func(t *testing.T) {
			random := seed.New(t)
			f := driving(t)
			f.kernel(t, "c", "6.1.0-1")
			f.report(t, "c", func(a *v1alpha1.AcceleratorNodeStatus) { a.Pools = nil }) // it has no device, and gets no driver
			if selector == "by reports" {
				f.selects(t, nil)
			}
			f.reconcile(t, "s")
			reports := map[string]*v1alpha1.AcceleratorNode{}
			for _, name := range []string{"a", "b"} {
				f.runs(t, name, "6.1.0-1", running())
				reports[name] = &v1alpha1.AcceleratorNode{}
				check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: name}, reports[name]))
			}
			var events []string
			for range 60 {
				name, event := []string{"a", "b"}[random.IntN(2)], ""
				switch random.IntN(8) {
				case 0:
					event = "the report goes"
					check.Must(t, client.IgnoreNotFound(f.api.Delete(t.Context(), reports[name].DeepCopy())))
				case 1:
					event = "the report comes"
					again := reports[name].DeepCopy()
					again.ResourceVersion = ""
					check.Must(t, client.IgnoreAlreadyExists(f.api.Create(t.Context(), again)))
				case 2:
					event = "the driver's pod goes"
					check.Must(t, client.IgnoreNotFound(f.api.Delete(t.Context(), podOn(name, drivers, "driver-"+name))))
				case 3:
					event = "the driver's pod comes"
					f.runs(t, name, "6.1.0-1", running())
				case 4:
					event = "the kernel is not known"
					f.kernel(t, name, "")
				case 5:
					event = "the kernel is known"
					f.kernel(t, name, "6.1.0-1")
				case 6:
					event = "another controller"
					f.restart()
				}
				if event != "" {
					events = append(events, name+": "+event)
				}
				f.reconcile(t, "s")
				if got := f.sets(t); len(got) != 1 || got["6.1.0-1"] != "ab" {
					t.Fatalf("the DaemonSets are for %v after\n%s", got, strings.Join(events, "\n"))
				}
			}
			check.Must(t, f.api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
			f.reconcile(t, "s")
			if got := f.sets(t)["6.1.0-1"]; got != "b" {
				t.Errorf("node a is gone: the DaemonSet is for %q", got)
			}
			f.selects(t, &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "y"}})
			f.reconcile(t, "s")
			if got := f.sets(t); strings.Contains(got["6.1.0-1"], "b") {
				t.Errorf("the stack selects others: the DaemonSets are for %v", got)
			}
		})
	}
}

func (f *fixture) selects(t *testing.T, selector *metav1.LabelSelector) {
	t.Helper()
	var s v1alpha1.AcceleratorStack
	check.Must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "s"}, &s))
	s.Spec.NodeSelector = selector
	check.Must(t, f.api.Update(t.Context(), &s))
}

// TestKMMMissing: a node that KMM is to give a stack's module stays the stack's without a report.
func TestKMMMissing(t *testing.T) {
	seen := stack.NewObserved()
	for _, name := range []string{"has", "had", "bare"} {
		seen.Nodes[name], seen.Labels[name] = &corev1.Node{}, map[string]string{}
	}
	seen.Labels["has"][stack.KMMLabel("drivers", stack.ModuleName("s"))] = "1"
	seen.Labels["had"][stack.KMMLabel("drivers", stack.ModuleName("other"))] = "1"
	s := stackOf("s", "")
	s.Spec.NodeSelector = nil
	stacks := []v1alpha1.AcceleratorStack{*s}
	seen.AddModules(stacks, "drivers")
	if got := stack.Select("s", stacks, seen.Candidates()).Nodes; !slices.Equal(got, []string{"has"}) {
		t.Errorf("selected %q, want the node with the label of the stack's module", got)
	}
}

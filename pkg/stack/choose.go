// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Candidate is a node that a stack may select.
type Candidate struct {
	Name   string
	Labels map[string]string
	// Reported says that a plugin reports the node.
	Reported bool
	// Has are the stacks of which the node has something, by their names.
	Has map[string]string
}

// Selection is which nodes a stack holds for.
type Selection struct {
	// Nodes are the names of these, sorted.
	Nodes []string
	// Overruled is how many it selects that an older stack holds for. By are the names of those, sorted.
	Overruled int
	By        []string
}

// Select says which nodes a stack holds for: of all stacks that select a node the oldest holds, and of these the first by name. A stack
// without a selector selects the nodes that a plugin reports, and those that have something of it: a report may be missing for a while, and
// that it is missing says nothing of the node. One that is being deleted selects none.
func Select(name string, stacks []v1alpha1.AcceleratorStack, nodes []Candidate) Selection {
	ordered := slices.Clone(stacks)
	slices.SortFunc(ordered, func(a, b v1alpha1.AcceleratorStack) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var out Selection
	for i := range nodes {
		n := &nodes[i]
		holds := ""
		for j := range ordered {
			s := &ordered[j]
			if s.DeletionTimestamp != nil || !selects(s, n) {
				continue
			}
			if holds == "" {
				holds = s.Name
			}
			if s.Name != name {
				continue
			}
			if holds == name {
				out.Nodes = append(out.Nodes, n.Name)
			} else {
				out.Overruled++
				out.By = append(out.By, holds)
			}
			break
		}
	}
	slices.Sort(out.Nodes)
	slices.Sort(out.By)
	out.By = slices.Compact(out.By)
	return out
}

// selects selects no node by a selector that is not valid.
func selects(s *v1alpha1.AcceleratorStack, n *Candidate) bool {
	if s.Spec.NodeSelector == nil {
		_, has := n.Has[s.Name]
		return n.Reported || has
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.NodeSelector)
	return err == nil && selector.Matches(labels.Set(n.Labels))
}

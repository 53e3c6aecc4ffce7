// SPDX-License-Identifier: Apache-2.0

package partitionpolicies

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// report is what a node reports of a policy.
type report struct {
	v1alpha1.NodePartitionPolicy

	node string
	// seen says that the node acted on the policy's present generation.
	seen bool
	// full says that the node reports as many policies as it can, and not this one.
	full bool
}

// reportsOf returns the reports of a policy, sorted by node. A node that the policy selects and that reports nothing of it has an empty
// one. Of a node without an AcceleratorNode there is none: no plugin runs there. Of an AcceleratorNode whose Node is gone neither.
func reportsOf(p *v1alpha1.PartitionPolicy, accelerators []v1alpha1.AcceleratorNode, nodes []corev1.Node) []report {
	selected := selection(p.Spec.NodeSelector)
	labelsOf := make(map[string]labels.Set, len(nodes))
	for i := range nodes {
		labelsOf[nodes[i].Name] = nodes[i].Labels
	}
	var out []report
	for i := range accelerators {
		a := &accelerators[i]
		set, exists := labelsOf[a.Name]
		if !exists {
			continue
		}
		r := report{node: a.Name}
		at := slices.IndexFunc(a.Status.PartitionPolicies, func(n v1alpha1.NodePartitionPolicy) bool { return n.Name == p.Name })
		switch {
		case at >= 0:
			r.NodePartitionPolicy = a.Status.PartitionPolicies[at]
			r.seen = r.Generation == p.Generation
		case !selected.Matches(set):
			continue
		default:
			r.full = len(a.Status.PartitionPolicies) >= v1alpha1.MaxNodePolicies ||
				a.Status.Rest != nil && a.Status.Rest.PartitionPolicyCount > 0
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b report) int { return cmp.Compare(a.node, b.node) })
	return out
}

// selection selects no node if the selector is not valid.
func selection(s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return labels.Everything()
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// waiting says whether and why the node is not yet as the policy wants it.
func (r *report) waiting(generation int64) (v1alpha1.WaitingNode, bool) {
	w := v1alpha1.WaitingNode{Node: r.node, Devices: r.Waiting, Reason: cmp.Or(r.Reason, ReasonWaiting), Message: r.Message}
	switch {
	case r.full:
		w.Reason = ReasonNotSeen
		w.Message = fmt.Sprintf("the node reports %d policies, which is as many as it can, and not this one: have fewer policies select the node",
			v1alpha1.MaxNodePolicies)
	case !r.seen && r.Name == "":
		w.Reason = ReasonNotSeen
		w.Message = "the node does not report the policy: look at the Fettle plugin there if this lasts; it may be down or of an earlier version"
	case !r.seen:
		w.Devices, w.Reason = r.Devices, ReasonNotSeen
		w.Message = fmt.Sprintf("the node reports generation %d of the policy, and not yet generation %d: look at the Fettle plugin there "+
			"if this lasts", r.Generation, generation)
	case r.Waiting <= 0:
		return v1alpha1.WaitingNode{}, false
	}
	return w, true
}

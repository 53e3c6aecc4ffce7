// SPDX-License-Identifier: Apache-2.0

// Package nodepolicy decides what PartitionPolicies want of nodes: which taints a node has, which of them Fettle may take off, and
// which PriorityClasses there are.
package nodepolicy

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// Node is what decides over the taints of a node.
type Node struct {
	Labels map[string]string
	// HasDevices is the answer of the function HasDevices.
	HasDevices bool
	// Taints are all that the node has, whoever put them there.
	Taints []corev1.Taint
	// Noted is the value of [v1alpha1.TaintsAnnotation].
	Noted string
}

// HasDevices says whether policies may taint a node, by its AcceleratorNode, which is nil if there is none, and by what is noted at the
// node. Published and withheld devices count, but for host devices: a node that has no others is like any other. A node keeps
// its taints while its devices are away, as during a change of their driver, for as long as the plugin has an AcceleratorNode there.
func HasDevices(a *v1alpha1.AcceleratorNode, noted string) bool {
	if a == nil {
		return false
	}
	return noted != "" || slices.ContainsFunc(a.Status.Pools, func(p v1alpha1.PoolStatus) bool {
		return p.Kind != string(device.KindHost) && p.Devices+p.Withheld > 0
	})
}

// NoExecuteKeys are the keys of the taints with the effect NoExecute that Fettle puts on nodes: it ends all pods that do not tolerate it.
type NoExecuteKeys []string

// Allow says whether Fettle may put a taint on nodes.
func (k NoExecuteKeys) Allow(t v1alpha1.NodeTaint) bool {
	return t.Effect != corev1.TaintEffectNoExecute || slices.Contains(k, t.Key)
}

// wants says whether a node that has some taints should have one of a policy. A taint that may not be put there stays where it is.
func (k NoExecuteKeys) wants(have []corev1.Taint, t v1alpha1.NodeTaint) bool {
	if k.Allow(t) {
		return true
	}
	there := find(have, t)
	return there != nil && there.Value == t.Value
}

// Wanted returns the taints that policies want on a node, in the order of the policies. Of taints with one key and effect, the first
// policy's counts. Policies that are not valid, or being deleted, want none. A taint with NoExecute whose key is not listed is wanted only
// where it is already.
func Wanted(node Node, policies []v1alpha1.PartitionPolicy, keys NoExecuteKeys) []v1alpha1.NodeTaint {
	if !node.HasDevices {
		return nil
	}
	var wanted []v1alpha1.NodeTaint
	for _, p := range policy.InOrder(policies) {
		if !Taints(&p) {
			continue
		}
		if selected, err := policy.SelectsNode(p.Spec.NodeSelector, node.Labels); err != nil || !selected {
			continue
		}
		wanted = appendNew(wanted, slices.DeleteFunc(slices.Clone(p.Spec.Nodes.Taints), func(t v1alpha1.NodeTaint) bool {
			return !keys.wants(node.Taints, t)
		}))
	}
	return wanted
}

// Foreign returns the name of the first node that has a taint, with this value, from somebody else, "" if none has.
func Foreign(t v1alpha1.NodeTaint, nodes []corev1.Node) string {
	first := ""
	for i := range nodes {
		n := &nodes[i]
		there := find(n.Spec.Taints, t)
		if there != nil && there.Value == t.Value && !slices.Contains(strings.Split(n.Annotations[v1alpha1.TaintsAnnotation], ","), t.String()) &&
			(first == "" || n.Name < first) {
			first = n.Name
		}
	}
	return first
}

// Tolerated returns the taints that pods with devices tolerate, in the order of the policies, each once: those that policies want on any
// node, as far as their status says that no node has them from somebody else.
func Tolerated(policies []v1alpha1.PartitionPolicy) []v1alpha1.NodeTaint {
	var all []v1alpha1.NodeTaint
	for _, p := range policy.InOrder(policies) {
		if !Taints(&p) {
			continue
		}
		for _, t := range p.Spec.Nodes.Taints {
			if slices.Contains(p.Status.ToleratedTaints, t) && !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
	}
	return all
}

// Taints says whether a policy wants taints.
func Taints(p *v1alpha1.PartitionPolicy) bool {
	return p.Spec.Nodes != nil && len(p.Spec.Nodes.Taints) > 0 && usable(p)
}

// usable says whether a policy about nodes counts: it is valid, and not being deleted.
func usable(p *v1alpha1.PartitionPolicy) bool {
	return p.DeletionTimestamp == nil && p.Spec.Nodes != nil && len(p.Spec.Validate(field.NewPath("spec"))) == 0
}

func appendNew(wanted, more []v1alpha1.NodeTaint) []v1alpha1.NodeTaint {
	for _, t := range more {
		if !slices.ContainsFunc(wanted, func(w v1alpha1.NodeTaint) bool { return w.Key == t.Key && w.Effect == t.Effect }) {
			wanted = append(wanted, t)
		}
	}
	return wanted
}

// Decide returns the taints that a node should have, and the new value of [v1alpha1.TaintsAnnotation]. Fettle takes off what is noted as
// it is, and nothing else: a taint whose value somebody changed is no longer Fettle's. A taint that somebody else put there stays, and
// keeps a wanted one with the same key and effect away.
func Decide(node Node, wanted []v1alpha1.NodeTaint) (taints []corev1.Taint, noted string) {
	before := strings.Split(node.Noted, ",")
	var ours []string
	for _, t := range node.Taints {
		text := textOf(&t)
		if slices.Contains(before, text) {
			if !slices.ContainsFunc(wanted, func(w v1alpha1.NodeTaint) bool { return w.String() == text }) {
				continue
			}
			ours = append(ours, text)
		}
		taints = append(taints, t)
	}
	for _, w := range wanted {
		if find(taints, w) != nil {
			continue
		}
		taints = append(taints, corev1.Taint{Key: w.Key, Value: w.Value, Effect: w.Effect})
		ours = append(ours, w.String())
	}
	slices.Sort(ours)
	return taints, strings.Join(slices.Compact(ours), ",")
}

// find returns the taint with the key and the effect of another, nil if there is none.
func find(taints []corev1.Taint, of v1alpha1.NodeTaint) *corev1.Taint {
	at := slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.Key == of.Key && t.Effect == of.Effect })
	if at < 0 {
		return nil
	}
	return &taints[at]
}

// textOf returns a taint as [v1alpha1.TaintsAnnotation] lists it.
func textOf(t *corev1.Taint) string {
	return v1alpha1.NodeTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}.String()
}

// Standing is how a node stands to the taints of one policy.
type Standing struct {
	Node string
	// Missing is the first taint that the node does not have yet, Taken the first whose key and effect the node has with another value.
	Missing, Taken *v1alpha1.NodeTaint
	// Value is the other value.
	Value string
}

// Tainted says whether the node has all taints of the policy.
func (s Standing) Tainted() bool { return s.Missing == nil && s.Taken == nil }

// StandingOf compares the taints of a policy with those of a node that it selects.
func StandingOf(name string, have []corev1.Taint, want []v1alpha1.NodeTaint) Standing {
	s := Standing{Node: name}
	for i := range want {
		t := find(have, want[i])
		switch {
		case t == nil:
			s.Missing = cmp.Or(s.Missing, &want[i])
		case t.Value != want[i].Value && s.Taken == nil:
			s.Taken, s.Value = &want[i], t.Value
		}
	}
	return s
}

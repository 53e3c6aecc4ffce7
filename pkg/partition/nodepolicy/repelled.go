// SPDX-License-Identifier: Apache-2.0

package nodepolicy

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// temporary begins the keys of taints that Kubernetes has on a node for a time, while it is cordoned or not healthy.
const temporary = "node.kubernetes.io/"

// Program is what runs on every node that it fits: the pods of a DaemonSet, or the driver of a Module of KMM.
type Program struct {
	// Name is NAMESPACE/NAME.
	Name string
	// Module says that it is a Module of KMM, which unloads the driver from a node with a taint that the Module does not tolerate.
	Module bool

	nodeName    string
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

// NewProgram returns a program whose pods are as specified. Of the specification only what selects nodes counts, and the tolerations.
func NewProgram(name string, module bool, spec *corev1.PodSpec) Program {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	return Program{
		Name: name, Module: module,
		nodeName: spec.NodeName, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: spec.Tolerations,
	}
}

// fits says whether the program runs on a node, taints aside.
func (p *Program) fits(node *corev1.Node) bool {
	if p.nodeName != "" && p.nodeName != node.Name {
		return false
	}
	matches, err := p.affinity.Match(node)
	return err == nil && matches
}

func (p *Program) tolerates(taint *corev1.Taint) bool {
	return slices.ContainsFunc(p.tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), taint, false) })
}

// toleratesAll says whether none of the taints keeps the program away.
func (p *Program) toleratesAll(taints []corev1.Taint) bool {
	return !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return podspec.Repels(&t) && !p.tolerates(&t) })
}

// site is a node with the taints of a policy and those of others.
type site struct {
	node         *corev1.Node
	ours, others []corev1.Taint
}

// siteOf divides the taints of a node that a policy selects. Ours are those of the policy that the node has or will have, but not one that
// somebody else put there with another value; one that Fettle put there changes with the policy. Others are those that keep programs away
// whatever the policy says.
func siteOf(node *corev1.Node, taints []v1alpha1.NodeTaint, keys NoExecuteKeys) site {
	s, theirs := site{node: node}, foreign(node)
	for _, t := range taints {
		if has := find(theirs, t); keys.wants(node.Spec.Taints, t) && (has == nil || has.Value == t.Value) {
			s.ours = append(s.ours, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	for _, t := range theirs {
		if !slices.ContainsFunc(s.ours, func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			s.others = append(s.others, t)
		}
	}
	return s
}

// foreign returns the taints of a node that no policy put there and that are not temporary. The taints of policies are left out
// since each policy says itself what they keep away: otherwise two policies would each leave a program to the other.
func foreign(node *corev1.Node) (out []corev1.Taint) {
	noted := strings.Split(node.Annotations[v1alpha1.TaintsAnnotation], ",")
	for _, t := range node.Spec.Taints {
		if !slices.Contains(noted, textOf(&t)) && !strings.HasPrefix(t.Key, temporary) {
			out = append(out, t)
		}
	}
	return out
}

// Fingerprint returns a number for what decides of nodes which programs run there, beside the taints of policies: while it is the same,
// [Repelled] gives the same answer for the same programs and policy.
func Fingerprint(nodes []*corev1.Node) uint64 {
	h := fnv.New64a()
	for _, n := range nodes {
		_, _ = fmt.Fprintf(h, "node %q\n", n.Name)
		for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
			_, _ = fmt.Fprintf(h, "label %q %q\n", key, n.Labels[key])
		}
		for _, t := range foreign(n) {
			_, _ = fmt.Fprintf(h, "taint %q\n", textOf(&t))
		}
	}
	return h.Sum64()
}

// Repelled returns the programs, sorted by name, that run on nodes which a policy selects, and that its taints keep away from one of them.
// A program that another taint of a node keeps away from there loses nothing by the policy.
func Repelled(taints []v1alpha1.NodeTaint, nodes []*corev1.Node, programs []Program, keys NoExecuteKeys) []Program {
	sites := make([]site, 0, len(nodes))
	for _, n := range nodes {
		sites = append(sites, siteOf(n, taints, keys))
	}
	var out []Program
	for i := range programs {
		p := &programs[i]
		if slices.ContainsFunc(sites, func(s site) bool {
			return !p.toleratesAll(s.ours) && p.toleratesAll(s.others) && p.fits(s.node)
		}) {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return out
}

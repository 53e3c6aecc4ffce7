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

// maxProgram bounds the bytes of what selects nodes of a program, tolerations included. Tenants make DaemonSets of any size, and each
// toleration and term is compared with each node.
const maxProgram = 16 << 10

// Program is what runs on every node that it fits: the pods of a DaemonSet, or the driver of a Module of KMM.
type Program struct {
	// Name is NAMESPACE/NAME.
	Name string
	// Module says that it is a Module of KMM, which unloads the driver from a node with a taint that the Module does not tolerate.
	Module bool
	// TooLarge says that what selects nodes is larger than is looked at.
	TooLarge bool

	nodeName    string
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

// NewProgram returns a program whose pods are as specified. Of the specification only what selects nodes counts, and the tolerations.
func NewProgram(name string, module bool, spec *corev1.PodSpec) Program {
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	if slices.Contains(spec.Tolerations, everything) { // as the DaemonSets of drivers, which name each of their nodes
		return Program{Name: name, Module: module, tolerations: []corev1.Toleration{everything}}
	}
	if sizeOf(spec) > maxProgram {
		return Program{Name: name, Module: module, TooLarge: true}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	return Program{
		Name: name, Module: module,
		nodeName: spec.NodeName, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: spec.Tolerations,
	}
}

// sizeOf returns about how many bytes a specification has of what selects nodes.
func sizeOf(spec *corev1.PodSpec) int {
	size := 0
	for key, value := range spec.NodeSelector {
		size += len(key) + len(value)
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		size += spec.Affinity.NodeAffinity.Size()
	}
	for i := range spec.Tolerations {
		size += spec.Tolerations[i].Size()
	}
	return size
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
// a [Gate] gives the same answer for the same programs and policy.
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

// Gate is what the taints of a policy keep away from the nodes that it selects.
type Gate struct{ sites []site }

// NewGate returns the gate of taints at nodes.
func NewGate(taints []v1alpha1.NodeTaint, nodes []*corev1.Node, keys NoExecuteKeys) Gate {
	g := Gate{sites: make([]site, 0, len(nodes))}
	for _, n := range nodes {
		g.sites = append(g.sites, siteOf(n, taints, keys))
	}
	return g
}

// Repels says whether a program runs on the nodes and the taints keep it away from one of them. A program that another taint of a node
// keeps away from there loses nothing by the policy. Of one that is too large it is not known, and the answer is no.
func (g Gate) Repels(p *Program) bool {
	return !p.TooLarge && slices.ContainsFunc(g.sites, func(s site) bool {
		return !p.toleratesAll(s.ours) && p.toleratesAll(s.others) && p.fits(s.node)
	})
}

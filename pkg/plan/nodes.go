// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// Reasons of the scheduler against a node, in the order in which it looks.
const (
	unschedulable = "node(s) were unschedulable"
	otherNode     = "node(s) didn't match the requested node name"
	untolerated   = "node(s) had untolerated taint(s)"
	// NotSelected: the pod's own nodeSelector or affinity rules the node out.
	NotSelected = "node(s) didn't match Pod's node affinity/selector"
	portsTaken  = "node(s) didn't have free ports for the requested pod ports"
	tooManyPods = "Too many pods"
	// repelsOthers: the pod has an anti-affinity to one that is there. Repelled: one that is there has it to the pod.
	repelsOthers = "node(s) didn't match pod anti-affinity rules"
	repelled     = "node(s) didn't satisfy existing pods anti-affinity rules"
	// NotAllocatable: the node does not have the devices.
	NotAllocatable = "cannot allocate all claims"
	// NotAvailable: a claim that has devices cannot be used there.
	NotAvailable = "resourceclaim not available on the node"
)

// wanted is what a pod wants of a node beside devices.
type wanted struct {
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	// selects is set if there is an affinity to look at.
	selects   bool
	resources corev1.ResourceList
	// names are those of the resources, extended those that devices may stand for, sorted.
	names, extended []corev1.ResourceName
	// ports are those of the host, domains what pods that have a node say of the nodes in a domain.
	ports   []podspec.Port
	domains map[domain]repulsion
}

// placed is a pod that has a node, and what it requires of others.
type placed struct {
	pod   *corev1.Pod
	node  *corev1.Node
	terms []podspec.Term
}

// domain is a value of a node label.
type domain struct{ key, value string }

// repulsion is what keeps a pod from a domain. The zero value is nothing.
type repulsion struct{ byItself, byOthers, unknown bool }

func (c *Cluster) wantedOf(pod *corev1.Pod) wanted {
	resources := requested(pod)
	affinity, selects := affinityOf(pod)
	return wanted{
		pod: pod, affinity: affinity, selects: selects,
		resources: resources, names: slices.Sorted(maps.Keys(resources)), extended: c.extendedNames(resources),
		ports: podspec.Ports(pod), domains: c.repulsions(pod),
	}
}

// affinityOf returns what a pod requires of the labels of its node, and whether it requires anything.
func affinityOf(pod *corev1.Pod) (affinity nodeaffinity.RequiredNodeAffinity, selects bool) {
	hasAffinity := pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil
	return nodeaffinity.GetRequiredNodeAffinity(pod), len(pod.Spec.NodeSelector) > 0 || hasAffinity
}

// repulsions says of which domains anti-affinities keep a pod out: its own, and those of pods that are there.
func (c *Cluster) repulsions(pod *corev1.Pod) map[domain]repulsion {
	var out map[domain]repulsion
	note := func(node *corev1.Node, key string, matches, known bool, how repulsion) {
		value, in := podspec.Domain(node, key)
		if !in || known && !matches {
			return
		}
		if out == nil {
			out = map[domain]repulsion{}
		}
		at := domain{key, value}
		r := out[at]
		out[at] = repulsion{
			byItself: r.byItself || known && how.byItself, byOthers: r.byOthers || known && how.byOthers, unknown: r.unknown || !known,
		}
	}
	own := podspec.AntiAffinity(pod)
	for _, p := range c.placed {
		for i := range p.terms {
			matches, known := p.terms[i].Matches(pod, c.Namespaces[pod.Namespace])
			note(p.node, p.terms[i].Key, matches, known, repulsion{byOthers: true})
		}
		for i := range own {
			matches, known := own[i].Matches(p.pod, c.Namespaces[p.pod.Namespace])
			note(p.node, own[i].Key, matches, known, repulsion{byItself: true})
		}
	}
	return out
}

// repulsionOn says what keeps the pod from a node.
func (w *wanted) repulsionOn(node *corev1.Node) (out repulsion) {
	for at, r := range w.domains {
		if value, in := podspec.Domain(node, at.key); in && value == at.value {
			out.byItself, out.byOthers, out.unknown = out.byItself || r.byItself, out.byOthers || r.byOthers, out.unknown || r.unknown
		}
	}
	return out
}

// occupy counts a pod that has a node.
func (c *Cluster) occupy(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || podspec.Ended(pod) {
		return
	}
	i, found := slices.BinarySearchFunc(c.Nodes, pod.Spec.NodeName, compareName)
	if found {
		v := c.views[i]
		if c.journal.on {
			pods, ports, requested, before := v.pods, v.ports, v.requested.DeepCopy(), len(c.placed)
			c.journal.note(func() { v.pods, v.ports, v.requested, c.placed = pods, ports, requested, c.placed[:before] })
		}
		v.pods++
		v.ports = append(v.ports, podspec.Ports(pod)...)
		add(v.requested, requestedThere(pod))
		c.placed = append(c.placed, placed{pod: pod, node: c.Nodes[i], terms: podspec.AntiAffinity(pod)})
	}
}

func compareName(node *corev1.Node, name string) int { return strings.Compare(node.Name, name) }

// refusals says why the scheduler would not take a node, devices aside.
func (c *Cluster) refusals(w *wanted, i int) ([]string, error) {
	node := c.Nodes[i]
	reason, err := w.ruledOut(node)
	if err != nil {
		return nil, err
	}
	if reason != "" {
		return []string{reason}, nil
	}
	if podspec.Conflict(w.ports, c.views[i].ports) {
		return []string{portsTaken}, nil
	}
	if reasons := c.insufficient(w, i); len(reasons) > 0 {
		return reasons, nil
	}
	switch r := w.repulsionOn(node); {
	case r.byItself:
		return []string{repelsOthers}, nil
	case r.byOthers:
		return []string{repelled}, nil
	}
	return nil, nil
}

// ruledOut says why a node is not one for the pod, whatever else is there. Empty: it may be.
func (w *wanted) ruledOut(node *corev1.Node) (reason string, err error) {
	if node.Spec.Unschedulable && !toleratesUnschedulable(w.pod) {
		return unschedulable, nil
	}
	if len(node.Spec.Taints) > 0 {
		taints, tolerations := node.Spec.Taints, w.pod.Spec.Tolerations
		if _, found := corev1helper.FindMatchingUntoleratedTaint(klog.Background(), taints, tolerations, podspec.Repels, true); found {
			return untolerated, nil
		}
	}
	if !w.selects {
		return "", nil
	}
	match, err := w.affinity.Match(node)
	if err != nil {
		return "", fmt.Errorf("node affinity of pod %s/%s: %w", w.pod.Namespace, w.pod.Name, err)
	}
	if !match {
		return NotSelected, nil
	}
	return "", nil
}

// MayBeOn returns what says whether a pod may be on a node by the labels and taints of the node.
func MayBeOn(pod *corev1.Pod) func(*corev1.Node) bool {
	w := wanted{pod: pod}
	w.affinity, w.selects = affinityOf(pod)
	return func(node *corev1.Node) bool {
		reason, err := w.ruledOut(node)
		return err == nil && reason == ""
	}
}

func toleratesUnschedulable(pod *corev1.Pod) bool {
	return corev1helper.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations,
		&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, true)
}

// insufficient says of which resources a node has too little. A node that does not say how much it has of CPU, memory or pods is not
// asked for them.
func (c *Cluster) insufficient(w *wanted, i int) []string {
	node, v := c.Nodes[i], c.views[i]
	var reasons []string
	if limit, stated := node.Status.Allocatable[corev1.ResourcePods]; stated && v.pods+1 > limit.Value() {
		reasons = append(reasons, tooManyPods)
	}
	for _, name := range w.names {
		allocatable, stated := node.Status.Allocatable[name]
		needed := w.resources[name]
		if needed.IsZero() || !stated && mayBeUnstated(name) || c.byDevices(name, node) {
			continue
		}
		sum := v.requested[name]
		sum = sum.DeepCopy()
		sum.Add(needed)
		if sum.Cmp(allocatable) > 0 {
			reasons = append(reasons, fmt.Sprintf("Insufficient %s", name))
		}
	}
	return reasons
}

// mayBeUnstated says whether a node without a quantity of a resource is not asked for it, where other resources are missing by that.
func mayBeUnstated(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// assumeNodes adds the nodes that slices name, for snapshots without any Node: a plan of slices alone would say that nothing fits.
func (c *Cluster) assumeNodes() {
	known := map[string]bool{}
	for _, slice := range c.Slices {
		name := ptr.Deref(slice.Spec.NodeName, "")
		if name == "" || known[name] {
			continue
		}
		known[name] = true
		c.Nodes = append(c.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		c.problem(titleOf("Node", "", name), "not in the input, which has no Node at all: taken as a node without labels, taints and limits, "+
			"since ResourceSlice %s names it", slice.Name)
	}
}

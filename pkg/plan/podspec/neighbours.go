// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// anyPort stands for ports that were too many to keep: it may be each of them.
const anyPort = -1

// anyDomain is the key of a term that stands for terms of too many labels: all nodes are in its domain. No label of a node is empty.
const anyDomain = ""

// Port is a port of the host. The zero address is all addresses of the host.
type Port struct {
	address  string
	protocol corev1.Protocol
	number   int32
}

// Ports returns the ports of the host that a pod takes for as long as it runs, as the scheduler counts them: those of containers and of
// sidecars.
func Ports(pod *corev1.Pod) []Port {
	if _, leftOut := pod.Annotations[portsLeftOut]; leftOut {
		return []Port{{number: anyPort}}
	}
	var out []Port
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			number := p.HostPort
			if number == 0 && pod.Spec.HostNetwork {
				number = p.ContainerPort // as the API server sets it
			}
			if number <= 0 {
				continue
			}
			port := Port{address: p.HostIP, protocol: p.Protocol, number: number}
			if port.address == "0.0.0.0" {
				port.address = ""
			}
			if port.protocol == "" {
				port.protocol = corev1.ProtocolTCP
			}
			out = append(out, port)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

// Conflict says whether pods with these ports cannot be on one node, or may not.
func Conflict(a, b []Port) bool {
	return slices.ContainsFunc(a, func(p Port) bool {
		return slices.ContainsFunc(b, func(q Port) bool {
			return p.number == anyPort || q.number == anyPort ||
				p.number == q.number && p.protocol == q.protocol && (p.address == q.address || p.address == "" || q.address == "")
		})
	})
}

// Term is an anti-affinity that a pod requires: no pod that it matches may be in the pod's domain, which has one value of a node label.
type Term struct {
	// Key is that label.
	Key string
	// pods are selected by their labels. Nil: by which is not known.
	pods labels.Selector
	// in are namespaces by name, of those by their labels. Nil: none by labels.
	in []string
	of labels.Selector
	// anywhere: it may be about any namespace.
	anywhere bool
}

// Repels reports whether a taint keeps pods that do not tolerate it from a node.
func Repels(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

// AntiAffinity returns what a pod requires.
func AntiAffinity(pod *corev1.Pod) []Term {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	var out []Term
	for i := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		term := &pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i]
		t := Term{Key: term.TopologyKey, in: term.Namespaces}
		var err error
		if t.pods, err = metav1.LabelSelectorAsSelector(term.LabelSelector); err != nil {
			t.pods = nil
		}
		if len(t.in) == 0 && term.NamespaceSelector == nil {
			t.in = []string{pod.Namespace}
		}
		if term.NamespaceSelector != nil {
			t.of, err = metav1.LabelSelectorAsSelector(term.NamespaceSelector)
			t.anywhere = err != nil
		}
		out = append(out, t)
	}
	return out
}

// Matches says whether a pod is one that the term is about, and whether that is known: not if the term selects namespaces by labels and
// the pod's is not at hand, and not if the selector or the labels of the pod were too large to keep.
func (t *Term) Matches(pod *corev1.Pod, namespace *corev1.Namespace) (matches, known bool) {
	_, unlabelled := pod.Annotations[labelsLeftOut]
	if t.pods != nil && !unlabelled && !t.pods.Matches(labels.Set(pod.Labels)) {
		return false, true
	}
	in, known := t.about(pod.Namespace, namespace)
	if known && !in {
		return false, true
	}
	known = known && t.pods != nil && (!unlabelled || t.pods.Empty())
	return in && known, known
}

// about says whether the term is about pods of a namespace, and whether that is known.
func (t *Term) about(name string, namespace *corev1.Namespace) (in, known bool) {
	switch {
	case slices.Contains(t.in, name):
		return true, true
	case t.anywhere:
		return false, false
	case t.of == nil:
		return false, true
	case t.of.Empty():
		return true, true // all namespaces
	case namespace == nil:
		return false, false
	}
	return t.of.Matches(labels.Set(namespace.Labels)), true
}

// Domain returns a node's value of a topology label. A node without the label is in no domain, but for kubelet's label of every node.
func Domain(node *corev1.Node, key string) (value string, in bool) {
	value, in = node.Labels[key]
	if key == anyDomain {
		return "", true
	}
	if !in && key == corev1.LabelHostname {
		return node.Name, true
	}
	return value, in
}

// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// maxLabels and maxSelector bound the bytes of labels and of a selector that Bound keeps, maxTerms the terms.
	maxLabels   = 4 << 10
	maxSelector = 1 << 10
	maxTerms    = 16
	// maxPorts is how many ports of the host LeaveOut keeps.
	maxPorts = 16
	// labelsLeftOut is the annotation of a pod whose labels were too many, portsLeftOut that of one whose ports were.
	labelsLeftOut = v1alpha1.GroupName + "/labels-left-out"
	portsLeftOut  = v1alpha1.GroupName + "/ports-left-out"
)

// leftOut is a selector of which nobody knows what it selects: no selector is made of it.
func leftOut() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Operator: "Unknown"}}}
}

// Bound copies from a pod to another what anti-affinities look at: its labels, and the anti-affinity that it requires. What is too large to
// keep becomes unknown: it may match, so that no plan counts on it.
func Bound(into, from *corev1.Pod) {
	bytes := 0
	for key, value := range from.Labels {
		bytes += len(key) + len(value)
	}
	if into.Labels = from.Labels; bytes > maxLabels {
		into.Labels = nil
		metav1.SetMetaDataAnnotation(&into.ObjectMeta, labelsLeftOut, "")
	}
	if from.Spec.Affinity == nil || from.Spec.Affinity.PodAntiAffinity == nil {
		return
	}
	var terms []corev1.PodAffinityTerm
	for _, t := range from.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		kept := corev1.PodAffinityTerm{
			TopologyKey: t.TopologyKey, LabelSelector: t.LabelSelector, Namespaces: t.Namespaces, NamespaceSelector: t.NamespaceSelector,
		}
		if tooLarge(t.LabelSelector) {
			kept.LabelSelector = leftOut()
		}
		bytes := 0
		for _, name := range t.Namespaces {
			bytes += len(name)
		}
		if bytes > maxSelector || tooLarge(t.NamespaceSelector) {
			kept.Namespaces, kept.NamespaceSelector = nil, leftOut()
		}
		terms = append(terms, kept)
	}
	if len(terms) > maxTerms {
		terms = merged(terms)
	}
	into.Spec.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms},
	}
}

// LeaveOut has all become unknown that Bound copied to a pod, and its ports of the host if they are many. The pod takes little then.
func LeaveOut(pod *corev1.Pod) {
	if len(Ports(pod)) > maxPorts {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Ports = nil
		}
		for i := range pod.Spec.InitContainers {
			pod.Spec.InitContainers[i].Ports = nil
		}
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, portsLeftOut, "")
	}
	if len(pod.Labels) > 0 {
		pod.Labels = nil
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, labelsLeftOut, "")
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		required := &a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*required = merged(*required)
	}
}

func tooLarge(s *metav1.LabelSelector) bool { return s != nil && s.Size() > maxSelector }

// merged returns a term for each label of nodes, of which only whether it reaches other namespaces is known. Of more labels than maxTerms
// it returns one term, for all nodes.
func merged(terms []corev1.PodAffinityTerm) []corev1.PodAffinityTerm {
	keys := map[string]bool{}
	for _, t := range terms {
		keys[t.TopologyKey] = true
	}
	out := map[string]corev1.PodAffinityTerm{}
	for _, t := range terms {
		if len(keys) > maxTerms {
			t.TopologyKey = anyDomain
		}
		of := corev1.PodAffinityTerm{TopologyKey: t.TopologyKey, LabelSelector: leftOut()}
		if len(t.Namespaces) > 0 || t.NamespaceSelector != nil || out[t.TopologyKey].NamespaceSelector != nil {
			of.NamespaceSelector = leftOut()
		}
		out[t.TopologyKey] = of
	}
	var all []corev1.PodAffinityTerm
	for _, t := range out {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b corev1.PodAffinityTerm) int { return cmp.Compare(a.TopologyKey, b.TopologyKey) })
	return all
}

// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// addTemplate adds what the object's template says of pods.
func addTemplate(pod *corev1.PodTemplateSpec, t *v1alpha1.CachePodTemplate) {
	pod.Labels = maps.Clone(t.Metadata.Labels)
	for name, value := range t.Metadata.Annotations {
		if _, own := pod.Annotations[name]; !own {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, value)
		}
	}
	pod.Spec.NodeSelector = maps.Clone(t.Spec.NodeSelector)
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, t.Spec.Tolerations...)
	pod.Spec.Affinity = t.Spec.Affinity.DeepCopy()
	pod.Spec.PriorityClassName = t.Spec.PriorityClassName
}

// pin keeps a pod on a node, whatever else it wants of nodes: of the terms of a node affinity one has to hold, so each gets the node. The
// scheduler still places the pod, since volumes may wait for that.
func pin(spec *corev1.PodSpec, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := spec.Affinity.NodeAffinity
	var terms []corev1.NodeSelectorTerm
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for _, term := range required.NodeSelectorTerms {
			if len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty one matches no node, and must not become one that does
				terms = append(terms, term)
			}
		}
	}
	if len(terms) == 0 {
		terms = make([]corev1.NodeSelectorTerm, 1)
	}
	for i := range terms {
		terms[i].MatchFields = append(slices.Clone(terms[i].MatchFields), corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		})
	}
	affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
}

// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// addTemplate adds the object's pod template.
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

// pin binds a pod to a node by its node affinity. One term of the affinity has to hold, so each term gets the node. The scheduler still
// places the pod, since volumes may wait for that.
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
			if len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty term matches no node, and must not begin to match one
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

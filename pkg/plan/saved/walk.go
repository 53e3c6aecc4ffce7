// SPDX-License-Identifier: Apache-2.0

package saved

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// walker changes the texts of a snapshot that may tell whose it is to what the function says, and removes what no plan needs.
type walker func(c category, text string) string

// walk goes through a snapshot.
func walk(s plan.Snapshot, w walker) {
	for _, o := range s.Namespaces {
		w.text(namespaceName, &o.Name)
		o.Labels = onlyAdmin(o.Labels)
	}
	for _, o := range s.Nodes {
		w.text(place, &o.Name)
		w.labels(o.Labels)
		for i := range o.Spec.Taints {
			w.value(&o.Spec.Taints[i].Value)
		}
	}
	for _, o := range s.Pods {
		w.pod(o)
	}
	for _, o := range s.Quotas {
		w.meta(&o.ObjectMeta)
	}
	for _, o := range s.Slices {
		w.slice(o)
	}
	for _, o := range s.Classes {
		o.Spec.Config = nil
	}
	for _, o := range s.Claims {
		w.claim(o)
	}
	for _, o := range s.Templates {
		w.meta(&o.ObjectMeta)
	}
	eachSpec(s, w.spec)
	for _, o := range s.TaintRules {
		w.meta(&o.ObjectMeta)
		w.value(&o.Spec.Taint.Value)
		if selector := o.Spec.DeviceSelector; selector != nil {
			w.text(place, selector.Pool)
		}
	}
}

// text changes a text that may be missing.
func (w walker) text(c category, text *string) {
	if text != nil && *text != "" {
		*text = w(c, *text)
	}
}

// value changes the value of a taint or toleration.
func (w walker) value(text *string) {
	if !tellsNothing(*text) {
		w.text(labelValue, text)
	}
}

func (w walker) label(key, value string) string {
	if c := categoryOf(key, value); c != "" {
		w.text(c, &value)
	}
	return value
}

func (w walker) labels(labels map[string]string) {
	for key, value := range labels {
		labels[key] = w.label(key, value)
	}
}

// meta changes the names of an object of a namespace and of its owners.
func (w walker) meta(m *metav1.ObjectMeta) {
	w.text(namespaceName, &m.Namespace)
	w.text(objectName, &m.Name)
	for i := range m.OwnerReferences {
		w.text(objectName, &m.OwnerReferences[i].Name)
	}
}

func (w walker) pod(o *corev1.Pod) {
	w.meta(&o.ObjectMeta)
	w.text(place, &o.Spec.NodeName)
	w.labels(o.Spec.NodeSelector)
	if o.Spec.Affinity != nil && o.Spec.Affinity.NodeAffinity != nil {
		o.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		w.nodeSelector(o.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	for i := range o.Spec.Tolerations {
		w.value(&o.Spec.Tolerations[i].Value)
	}
	for i := range o.Spec.ResourceClaims {
		w.text(objectName, o.Spec.ResourceClaims[i].ResourceClaimName)
		w.text(objectName, o.Spec.ResourceClaims[i].ResourceClaimTemplateName)
	}
	for i := range o.Status.ResourceClaimStatuses {
		w.text(objectName, o.Status.ResourceClaimStatuses[i].ResourceClaimName)
	}
	if status := o.Status.ExtendedResourceClaimStatus; status != nil {
		w.text(objectName, &status.ResourceClaimName)
	}
	if _, mirror := o.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		o.Annotations[corev1.MirrorPodAnnotationKey] = ""
	}
	o.Status.Conditions = nil
}

func (w walker) nodeSelector(selector *corev1.NodeSelector) {
	if selector == nil {
		return
	}
	for i := range selector.NodeSelectorTerms {
		for _, requirement := range selector.NodeSelectorTerms[i].MatchExpressions {
			for j, value := range requirement.Values {
				requirement.Values[j] = w.label(requirement.Key, value)
			}
		}
		for _, requirement := range selector.NodeSelectorTerms[i].MatchFields { // of nodes only the name can be matched
			for j := range requirement.Values {
				w.text(place, &requirement.Values[j])
			}
		}
	}
}

func (w walker) slice(o *resourceapi.ResourceSlice) {
	w.meta(&o.ObjectMeta)
	w.text(place, o.Spec.NodeName)
	w.text(place, &o.Spec.Pool.Name)
	w.nodeSelector(o.Spec.NodeSelector)
	for i := range o.Spec.Devices {
		device := &o.Spec.Devices[i]
		w.text(place, device.NodeName)
		w.nodeSelector(device.NodeSelector)
		for j := range device.Taints {
			w.value(&device.Taints[j].Value)
		}
		for name, attribute := range device.Attributes {
			if !identifies(name) {
				continue
			}
			w.text(identity, attribute.StringValue)
			for j := range attribute.StringValues {
				w.text(identity, &attribute.StringValues[j])
			}
		}
	}
}

func (w walker) claim(o *resourceapi.ResourceClaim) {
	w.meta(&o.ObjectMeta)
	for i := range o.Status.ReservedFor {
		w.text(objectName, &o.Status.ReservedFor[i].Name)
	}
	for i := range o.Status.Devices {
		w.text(place, &o.Status.Devices[i].Pool)
		for j := range o.Status.Devices[i].Conditions {
			o.Status.Devices[i].Conditions[j].Message = ""
		}
	}
	allocation := o.Status.Allocation
	if allocation == nil {
		return
	}
	w.nodeSelector(allocation.NodeSelector)
	allocation.Devices.Config = nil
	for i := range allocation.Devices.Results {
		w.text(place, &allocation.Devices.Results[i].Pool)
		w.tolerations(allocation.Devices.Results[i].Tolerations)
	}
}

func (w walker) spec(spec *resourceapi.ResourceClaimSpec) {
	spec.Devices.Config = nil
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if request.Exactly != nil {
			w.tolerations(request.Exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			w.tolerations(request.FirstAvailable[j].Tolerations)
		}
	}
}

func (w walker) tolerations(tolerations []resourceapi.DeviceToleration) {
	for i := range tolerations {
		w.value(&tolerations[i].Value)
	}
}

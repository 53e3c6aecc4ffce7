// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// remarks lists what could make the answer of the node differ.
func (o *Objects) remarks(c *resourceapi.ResourceClaim, pod *corev1.Pod) []string {
	var out []string
	if _, known := o.Namespaces[c.Namespace]; !known && slices.ContainsFunc(o.Presets, selectsNamespaces) {
		out = append(out, fmt.Sprintf("the labels of namespace %s are not known: it is taken to have none but %s; give the Namespace too",
			c.Namespace, corev1.LabelMetadataName))
	}
	if gone := o.unpublished(c); len(gone) > 0 && slices.ContainsFunc(o.Presets, hasCEL) {
		out = append(out, fmt.Sprintf("CEL sees no attributes of %s, which no ResourceSlice here has: give the slices of the node too "+
			"(--slices)", strings.Join(gone, ", ")))
	}
	if !o.hasDevices(c) {
		out = append(out, fmt.Sprintf("it holds no device of %s, whose presets it would have", o.Driver))
	}
	if pod == nil {
		return append(out, o.podsSharing(c)...)
	}
	return append(out, o.podRemarks(c, pod)...)
}

// selectsNamespaces reports whether a preset selects namespaces by more than their name.
func selectsNamespaces(p preset.Preset) bool {
	if p.NamespaceSelector == nil {
		return false
	}
	keys := slices.Collect(maps.Keys(p.NamespaceSelector.MatchLabels))
	for _, e := range p.NamespaceSelector.MatchExpressions {
		keys = append(keys, e.Key)
	}
	return slices.ContainsFunc(keys, func(key string) bool { return key != corev1.LabelMetadataName })
}

func hasCEL(p preset.Preset) bool {
	s := p.Rules.DeviceSelector
	return s != nil && (s.CEL != "" || s.Absent != nil && s.Absent.CEL != "")
}

func (o *Objects) hasDevices(c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == o.Driver
	})
}

// unpublished lists the devices of a claim that no slice has.
func (o *Objects) unpublished(c *resourceapi.ResourceClaim) []string {
	var out []string
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver == o.Driver && o.published(result.Pool, result.Device) == nil {
			out = append(out, result.Pool+"/"+result.Device)
		}
	}
	return out
}

// podsSharing lists the known pods that use a shared claim.
func (o *Objects) podsSharing(c *resourceapi.ResourceClaim) []string {
	var out []string
	for _, pod := range o.Pods {
		if pod.Namespace == c.Namespace && slices.Contains(preset.ClaimsOf(pod), c.Name) {
			out = append(out, fmt.Sprintf("pod %s uses the claim and does not own it: what depends on a pod is not applied", pod.Name))
		}
	}
	return out
}

// podRemarks lists remarks about the pod that owns a claim.
func (o *Objects) podRemarks(c *resourceapi.ResourceClaim, pod *corev1.Pod) []string {
	var out []string
	if pod.Annotations[v1alpha1.ExcludePresetsAnnotation] == "true" {
		out = append(out, fmt.Sprintf("pod %s has the annotation %s, which keeps every preset away", pod.Name, v1alpha1.ExcludePresetsAnnotation))
	}
	names := preset.ClaimsOf(pod)
	if !slices.Contains(names, c.Name) {
		out = append(out, fmt.Sprintf("the status of pod %s does not say which containers use the claim, so none of their own variables "+
			"and mounts count: take the pod as it runs, kubectl get pod %[1]s -o yaml", pod.Name))
	}
	for _, name := range names {
		there := slices.ContainsFunc(o.Claims, func(s *resourceapi.ResourceClaim) bool { return s.Namespace == c.Namespace && s.Name == name })
		if !there {
			out = append(out, fmt.Sprintf("claim %s, which pod %s has too, is not known: its classes and devices count for what presets select, "+
				"and what presets give for it may change this one's values; give it too", name, pod.Name))
		}
	}
	return out
}

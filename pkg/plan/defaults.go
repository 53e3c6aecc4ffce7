// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// SetDefaults sets what the API server sets in objects that do not say it, as far as it decides about devices. Objects without a UID get
// one that follows from their name, since owners and consumers are known by it.
func SetDefaults(s *Snapshot) {
	for _, c := range s.Claims {
		defaultSpec(&c.Spec)
		defaultUID("claim", c)
	}
	for _, t := range s.Templates {
		defaultSpec(&t.Spec.Spec)
	}
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			for j := range slice.Spec.Devices[i].Taints {
				defaultTaint(&slice.Spec.Devices[i].Taints[j])
			}
		}
	}
	for _, rule := range s.TaintRules {
		defaultTaint(&rule.Spec.Taint)
	}
	for _, pod := range s.Pods {
		defaultPod(pod)
		defaultUID("pod", pod)
	}
	for _, node := range s.Nodes {
		if node.Status.Allocatable == nil {
			node.Status.Allocatable = node.Status.Capacity.DeepCopy()
		}
	}
}

// defaultUID gives an object without a UID one.
func defaultUID(kind string, object metav1.Object) {
	if object.GetUID() == "" {
		object.SetUID(types.UID(kind + ":" + object.GetNamespace() + "/" + object.GetName()))
	}
}

// defaultSpec sets the mode and the number of devices of requests, and the operators of tolerations.
func defaultSpec(spec *resourceapi.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if e := request.Exactly; e != nil {
			defaultCount(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			defaultCount(&sub.AllocationMode, &sub.Count)
			defaultTolerations(sub.Tolerations)
		}
	}
}

func defaultCount(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultTolerations(tolerations []resourceapi.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}

// defaultTaint sets the time of a taint. When it was added decides only about evictions; the time is the same in every run.
func defaultTaint(taint *resourceapi.DeviceTaint) {
	if taint.TimeAdded == nil {
		taint.TimeAdded = &metav1.Time{Time: time.Unix(0, 0).UTC()}
	}
}

// defaultPod makes requests of limits, as the API server does, and lets the pod stay for a while on a node that does not answer.
func defaultPod(pod *corev1.Pod) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(300)),
			})
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			resources := &containers[i].Resources
			if len(resources.Limits) > 0 {
				requests := resources.Limits.DeepCopy()
				maps.Copy(requests, resources.Requests)
				resources.Requests = requests
			}
		}
	}
	if whole := pod.Spec.Resources; whole != nil && len(whole.Limits) > 0 {
		whole.Requests = requestsOfWhole(pod)
	}
}

// requestsOfWhole returns what a pod with limits for all of it requests, as the API server sets it: what the pod itself requests of a
// resource, what its containers request where it says nothing, and its limit where they say nothing either. Huge pages are requested as
// they are limited.
func requestsOfWhole(pod *corev1.Pod) corev1.ResourceList {
	requests := pod.Spec.Resources.Requests.DeepCopy()
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	fill := func(from corev1.ResourceList, counts func(corev1.ResourceName) bool) {
		for name, quantity := range from {
			if _, ok := requests[name]; !ok && counts(name) {
				requests[name] = quantity.DeepCopy()
			}
		}
	}
	fill(resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{}), func(name corev1.ResourceName) bool {
		return resourcehelper.IsSupportedPodLevelResource(name) && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	})
	fill(pod.Spec.Resources.Limits, resourcehelper.IsSupportedPodLevelResource)
	return requests
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// ExtendedResources is how a report calls the claim of a pod's extended resources.
const ExtendedResources = "extended-resources"

// ExtendedClasses returns the classes that stand for extended resources: by spec.extendedResourceName, and by the name that every class
// has. Of classes with the same name the newest counts, then the first by name.
func ExtendedClasses(set gates.Set, classes []*resourceapi.DeviceClass) map[corev1.ResourceName]*resourceapi.DeviceClass {
	out := map[corev1.ResourceName]*resourceapi.DeviceClass{}
	if !set.On(gates.ExtendedResource) {
		return out
	}
	newestFirst := slices.SortedFunc(slices.Values(classes), func(a, b *resourceapi.DeviceClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, class := range newestFirst {
		out[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = class
		if class.Spec.ExtendedResourceName == nil {
			continue
		}
		if name := corev1.ResourceName(*class.Spec.ExtendedResourceName); out[name] == nil {
			out[name] = class
		}
	}
	return out
}

// requested is what a pod asks of a node, as the scheduler sums it.
func requested(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// requestedThere is what a pod has of its node.
func requestedThere(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, podspec.OnNode())
}

// ExtendedClaim returns the claim that the scheduler makes for a pod's extended resources on a node, or nil if there is none to make:
// only where a class stands for a resource, and the node has none of it in its allocatable.
func (c *Cluster) ExtendedClaim(pod *corev1.Pod, node *corev1.Node) *resourceapi.ResourceClaim {
	return c.extendedClaim(pod, c.delegated(c.extendedNames(requested(pod)), node))
}

// extendedNames returns the resources of a list that devices may stand for, sorted.
func (c *Cluster) extendedNames(resources corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name, quantity := range resources {
		if c.extended[name] != nil && !quantity.IsZero() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// delegated returns those of the resources that devices stand for on a node.
func (c *Cluster) delegated(names []corev1.ResourceName, node *corev1.Node) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range names {
		if c.byDevices(name, node) {
			out = append(out, name)
		}
	}
	return out
}

// extendedClaim makes the claim for some resources of a pod.
func (c *Cluster) extendedClaim(pod *corev1.Pod, names []corev1.ResourceName) *resourceapi.ResourceClaim {
	if len(names) == 0 {
		return nil
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: c.freeName(pod.Namespace, pod.Name+"-extended-resources"),
			Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true),
			}},
		},
	}
	for _, name := range names {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, extendedRequests(pod, name, c.extended[name].Name)...)
	}
	slices.SortFunc(claim.Spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	defaultUID("claim", claim)
	return claim
}

// byDevices says whether devices of a class stand for a resource on a node, rather than a device plugin.
func (c *Cluster) byDevices(name corev1.ResourceName, node *corev1.Node) bool {
	if c.extended[name] == nil {
		return false
	}
	allocatable := node.Status.Allocatable[name]
	return allocatable.IsZero()
}

// extendedRequests makes the requests for one resource. Containers that live as long as the pod, sidecars included, each have their own.
// An init container uses the devices of those that start after it; what it needs beyond them is one request for all init containers, as
// large as the largest.
func extendedRequests(pod *corev1.Pod, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	initContainers := len(pod.Spec.InitContainers)
	lasting := func(i int) bool {
		return i >= initContainers || ptr.Deref(containers[i].RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
	}
	var own []resourceapi.DeviceRequest
	// after has what the lasting containers from an index on have.
	after := make([]int64, len(containers)+1)
	for i := len(containers) - 1; i >= 0; i-- {
		after[i] = after[i+1]
		if n := count(&containers[i], name); lasting(i) && n > 0 {
			after[i] += n
			own = append(own, extendedRequest(i, &containers[i], name, class, n))
		}
	}
	var largest *resourceapi.DeviceRequest
	for i := range initContainers {
		more := count(&containers[i], name) - after[i]
		if !lasting(i) && more > 0 && (largest == nil || more > largest.Exactly.Count) {
			largest = ptr.To(extendedRequest(i, &containers[i], name, class, more))
		}
	}
	if largest != nil {
		own = append(own, *largest)
	}
	return own
}

// count is how many of a resource a container asks for.
func count(container *corev1.Container, name corev1.ResourceName) int64 {
	quantity := container.Resources.Requests[name]
	n, _ := quantity.AsInt64()
	return n
}

// extendedRequest is named by the index of the container and that of the resource among the container's requests.
func extendedRequest(i int, container *corev1.Container, name corev1.ResourceName, class string, n int64) resourceapi.DeviceRequest {
	names := slices.Sorted(maps.Keys(container.Resources.Requests))
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, slices.Index(names, name)),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: n,
		},
	}
}

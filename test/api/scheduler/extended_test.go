// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// resourceName is an extended resource that a class stands for.
const resourceName = "example.com/gpu"

// extended is a class that stands for an extended resource.
func extended(name string) *resourceapi.DeviceClass {
	c := class(name)
	c.Spec.ExtendedResourceName = ptr.To(resourceName)
	return c
}

// limits has a container ask for an extended resource.
func limits(name, amount string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
	return corev1.ResourceRequirements{Limits: list, Requests: list}
}

// containers is a pod whose containers ask for so many of an extended resource.
func containers(name, resource string, amounts ...string) *corev1.Pod {
	p := pod(name)
	p.Spec.Containers = nil
	for i, amount := range amounts {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "c" + string(rune('0'+i)), Image: "example.com/image", Resources: limits(resource, amount),
		})
	}
	return p
}

// extendedScenarios are about extended resources that a class gives. Kubernetes 1.34 knows only those of nodes.
func extendedScenarios() []scenario {
	const none = "p waits no-resource: asks-for-no-devices, the pod asks for no devices"
	const implicit = "deviceclass.resource.kubernetes.io/gpu"
	first := containers("p", resourceName, "1")
	first.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/image", Resources: limits(resourceName, "2")}}
	plugin := node("a")
	plugin.Status.Capacity = plugin.Status.Capacity.DeepCopy()
	plugin.Status.Capacity[resourceName] = resource.MustParse("2")
	plugin.Status.Allocatable = plugin.Status.Capacity
	both := containers("p", resourceName, "1")
	both.Spec.ResourceClaims = pod("", named("own", "c")).Spec.ResourceClaims
	both.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "own"}}
	return []scenario{
		{
			name:    "an extended resource",
			objects: cat(on("a", gpus(3)...), extended("gpu"), containers("p", resourceName, "2")),
			want:    "p a extended-resources=g0,g1",
			older:   none,
		},
		{
			name:    "the name that every class has as an extended resource",
			objects: cat(on("a", gpus(2)...), class("gpu"), containers("p", implicit, "1")),
			want:    "p a extended-resources=g0",
			older:   none,
		},
		{
			name:    "more of an extended resource than there is",
			objects: cat(on("a", gpus(2)...), extended("gpu"), containers("p", resourceName, "3")),
			want:    "p waits no-devices: too-few, wants 3 GPUs on one node, and a, which comes closest, has 2",
			older:   none,
		},
		{
			name:    "an extended resource of two containers",
			objects: cat(on("a", gpus(3)...), extended("gpu"), containers("p", resourceName, "1", "2")),
			want:    "p a extended-resources=g0,g1,g2",
			older:   none,
		},
		{
			name:    "an init container's extended resource is used again",
			objects: cat(on("a", gpus(2)...), extended("gpu"), first),
			want:    "p a extended-resources=g0,g1",
			older:   none,
		},
		{
			name:    "an extended resource of a device plugin",
			objects: cat(plugin, extended("gpu"), containers("p", resourceName, "2")),
			want:    "p a",
		},
		{
			name:    "too little of a device plugin's extended resource",
			objects: cat(plugin, slice("a", gpus(4)...), extended("gpu"), containers("p", resourceName, "3")),
			want:    none,
		},
		{
			name:    "an extended resource that no class gives",
			objects: cat(on("a", gpus(2)...), extended("gpu"), containers("p", "example.com/nic", "1")),
			want:    none,
		},
		{
			name:    "pods fill a node with extended resources",
			objects: cat(on("a", gpus(1)...), extended("gpu"), containers("p", resourceName, "1"), containers("q", resourceName, "1")),
			want:    "p a extended-resources=g0\nq waits no-devices: held, the only GPU that would do is on node a, and is held",
			older:   none + "\nq waits no-resource: asks-for-no-devices, the pod asks for no devices",
		},
		{
			name:    "a claim and an extended resource",
			objects: cat(on("a", gpus(2)...), extended("gpu"), claim("c", exactly("r", 1)), both),
			want:    "p a extended-resources=g1 own=g0",
			older:   "p waits no-resource: node, Insufficient example.com/gpu",
		},
	}
}

// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/test/objects"
)

type (
	request    = resourceapi.DeviceRequest
	subrequest = resourceapi.DeviceSubRequest
)

// exactly asks for a number of devices of the class gpu.
func exactly(name string, count int64, selectors ...string) request {
	return request{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", Count: count, Selectors: objects.Selectors(selectors...),
	}}
}

// all asks for all devices of the class gpu.
func all(name string, selectors ...string) request {
	r := exactly(name, 0, selectors...)
	r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	return r
}

// first asks for the first alternative that fits.
func first(name string, alternatives ...subrequest) request {
	return request{Name: name, FirstAvailable: alternatives}
}

// sub is an alternative.
func sub(name string, count int64, selectors ...string) subrequest {
	return subrequest{Name: name, DeviceClassName: "gpu", Count: count, Selectors: objects.Selectors(selectors...)}
}

// of changes the class of a request.
func of(class string, r request) request {
	r.Exactly.DeviceClassName = class
	return r
}

// admin asks for a look at devices that others may have.
func admin(r request) request {
	r.Exactly.AdminAccess = ptr.To(true)
	return r
}

// tolerating tolerates a taint, whatever its value and effect.
func tolerating(key string, r request) request {
	toleration := resourceapi.DeviceToleration{Key: key, Operator: resourceapi.DeviceTolerationOpExists}
	r.Exactly.Tolerations = append(r.Exactly.Tolerations, toleration)
	return r
}

// needing asks for a part of a device's capacity.
func needing(name, amount string, r request) request {
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{resourceapi.QualifiedName(name): resource.MustParse(amount)},
	}
	return r
}

func claim(name string, requests ...request) *resourceapi.ResourceClaim {
	return objects.Claim("", name, requests...)
}

// matching wants the devices of the claim, or of some of its requests, to have the same attribute.
func matching(c *resourceapi.ResourceClaim, attribute string, requests ...string) *resourceapi.ResourceClaim {
	name := resourceapi.FullyQualifiedName(driver + "/" + attribute)
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &name, Requests: requests})
	return c
}

// distinct wants them to differ in an attribute.
func distinct(c *resourceapi.ResourceClaim, attribute string, requests ...string) *resourceapi.ResourceClaim {
	name := resourceapi.FullyQualifiedName(driver + "/" + attribute)
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{DistinctAttribute: &name, Requests: requests})
	return c
}

// template makes claims as c is.
func template(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: c.Spec},
	}
}

// held is a claim that has devices of a node already, as DRIVER's POOL and device, and is reserved for a pod that is not there. Devices are
// for the claim's first request.
func held(c *resourceapi.ResourceClaim, node, pool string, devices ...string) *resourceapi.ResourceClaim {
	now := metav1.Now()
	allocation := &resourceapi.AllocationResult{AllocationTimestamp: &now}
	for _, device := range devices {
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: c.Spec.Devices.Requests[0].Name, Driver: driver, Pool: pool, Device: device,
		})
	}
	if node != "" {
		allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}
	}
	c.Status.Allocation = allocation
	return reserved(c, 1)
}

// reserved gives an allocated claim consumers that no controller looks for.
func reserved(c *resourceapi.ResourceClaim, n int) *resourceapi.ResourceClaim {
	c.Status.ReservedFor = nil
	for i := range n {
		name := "job-" + strconv.Itoa(i)
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			APIGroup: "example.com", Resource: "jobs", Name: name, UID: types.UID(name),
		})
	}
	return c
}

// deleted is a claim that somebody keeps from being gone.
func deleted(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	now := metav1.Now()
	c.DeletionTimestamp, c.Finalizers = &now, []string{"example.com/keep"}
	return c
}

// pod has one container and claims.
func pod(name string, claims ...corev1.PodResourceClaim) *corev1.Pod {
	container := corev1.Container{Name: "main", Image: "example.com/image"}
	for _, c := range claims {
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: c.Name})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container}, ResourceClaims: claims},
	}
}

// named is a pod's own name for a claim.
func named(name, claim string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: name, ResourceClaimName: &claim}
}

// templated is a pod's own name for a claim that is made for it.
func templated(name, template string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template}
}

// asks is a pod with a claim of its own, which the pod calls gpu.
func asks(name string, requests ...request) []client.Object {
	return with(claim(name, requests...))
}

// with is a claim and a pod of the same name that has it.
func with(c *resourceapi.ResourceClaim) []client.Object {
	return cat(c, pod(c.Name, named("gpu", c.Name)))
}

// pinned has the pod among the objects, and no other, run on a node.
func pinned(node string, objects []client.Object) []client.Object {
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		}
	}
	return objects
}

func withNamespace[T client.Object](object T, namespace string) T {
	object.SetNamespace(namespace)
	return object
}

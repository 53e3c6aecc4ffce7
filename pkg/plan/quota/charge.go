// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimCount is the resource that counts the claims themselves.
const claimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// charges are whole numbers of resources: devices, claims and extended resources have no parts.
type charges map[corev1.ResourceName]int64

func (c charges) add(more charges) {
	for name, n := range more {
		c[name] += n
	}
}

// amounts lists them by name.
func (c charges) amounts() []Amount {
	out := []Amount{}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		out = append(out, Amount{Resource: name, Quantity: *quantity(c[name])})
	}
	return out
}

// devicesByClass returns how many devices a claim asks for of each class, as core quota counts them when the claim is made: all devices
// of a node count as the most that a claim can have, of alternatives the largest number of each class counts, and requests with admin
// access and for shares count like any other.
func devicesByClass(spec *resourceapi.ResourceClaimSpec) map[string]int64 {
	out := map[string]int64{}
	for _, r := range spec.Devices.Requests {
		if r.Exactly != nil {
			out[r.Exactly.DeviceClassName] += devicesOf(r.Exactly.AllocationMode, r.Exactly.Count)
			continue
		}
		largest := map[string]int64{}
		for _, sub := range r.FirstAvailable {
			largest[sub.DeviceClassName] = max(largest[sub.DeviceClassName], devicesOf(sub.AllocationMode, sub.Count))
		}
		for class, n := range largest {
			out[class] += n
		}
	}
	return out
}

// devicesOf counts what one request asks for. The mode and the count of an object from a file may be missing; the API server sets them.
func devicesOf(mode resourceapi.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourceapi.DeviceAllocationModeAll:
		return resourceapi.AllocationResultsMaxSize
	case resourceapi.DeviceAllocationModeExactCount, "":
		return cmp.Or(count, 1)
	}
	return 0 // core charges nothing for a mode that it does not know
}

// classByRequest returns the class of each request, under the name by which results of an allocation have it.
func classByRequest(spec *resourceapi.ResourceClaimSpec) map[string]string {
	out := map[string]string{}
	for _, r := range spec.Devices.Requests {
		if r.Exactly != nil {
			out[r.Name] = r.Exactly.DeviceClassName
		}
		for _, sub := range r.FirstAvailable {
			out[r.Name+"/"+sub.Name] = sub.DeviceClassName
		}
	}
	return out
}

// rules know which extended resource stands for which class.
type rules struct {
	// resourceOf has the name that a class gives itself, classOf the class of any name.
	resourceOf map[string]corev1.ResourceName
	classOf    map[corev1.ResourceName]string
}

// newRules reads the classes. Of two classes with one name for an extended resource the newer one has it, then the first by name.
func newRules(classes []*resourceapi.DeviceClass) rules {
	r := rules{resourceOf: map[string]corev1.ResourceName{}, classOf: map[corev1.ResourceName]string{}}
	for _, class := range slices.SortedFunc(slices.Values(classes), func(a, b *resourceapi.DeviceClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}) {
		r.classOf[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = class.Name
		if class.Spec.ExtendedResourceName == nil {
			continue
		}
		name := corev1.ResourceName(*class.Spec.ExtendedResourceName)
		r.resourceOf[class.Name] = name
		if _, taken := r.classOf[name]; !taken {
			r.classOf[name] = class.Name
		}
	}
	return r
}

// concerns says whether a resource of a quota is about claims or devices.
func (r rules) concerns(name corev1.ResourceName) bool {
	if name == claimCount || isClassResource(name) {
		return true
	}
	requested, ok := cutRequests(name)
	return ok && r.classOf[requested] != ""
}

// claim returns what a claim is charged. Devices that are charged to the claim's pod already, as an extended resource, are not charged to
// the extended resource again.
func (r rules) claim(spec *resourceapi.ResourceClaimSpec, ofPod charges) charges {
	out := charges{claimCount: 1}
	for class, n := range devicesByClass(spec) {
		out[classResource(class)] += n
		name := r.resourceOf[class]
		if name == "" {
			continue // requests.deviceclass... counts claims of those classes alone that have another name, too
		}
		implicit := corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix + class)
		for _, extended := range []corev1.ResourceName{requests(name), requests(implicit)} {
			if rest := n - ofPod[extended]; rest > 0 {
				out[extended] += rest
			}
		}
	}
	return out
}

// existing returns what a claim of the snapshot is charged.
func (r rules) existing(claim *resourceapi.ResourceClaim, pods map[string]*corev1.Pod) charges {
	var ofPod charges
	if owner := metav1.GetControllerOf(claim); owner != nil && claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		if pod := pods[podKey(claim.Namespace, owner.Name, string(owner.UID))]; pod != nil {
			ofPod = r.pod(pod)
		}
	}
	return r.claim(&claim.Spec, ofPod)
}

// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

// charges are whole numbers of resources: devices, claims and extended resources have no parts.
type charges map[corev1.ResourceName]int64

func (c charges) add(more charges) {
	for name, n := range more {
		c[name] += n
	}
}

// whole converts a list of whole numbers.
func whole(list corev1.ResourceList) charges {
	out := charges{}
	for name, quantity := range list {
		out[name] = quantity.Value()
	}
	return out
}

// amounts lists them by name.
func (c charges) amounts() []Amount {
	out := []Amount{}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		out = append(out, Amount{Resource: name, Quantity: *quantity(c[name])})
	}
	return out
}

// devicesByClass returns how many devices a claim is charged for of each class.
func devicesByClass(spec *resourceapi.ResourceClaimSpec) map[string]int64 {
	out := map[string]int64{}
	for name, n := range plan.Charge(spec) {
		if class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass); ok {
			out[class] = n.Value()
		}
	}
	return out
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
	// nameOf has the name that a class gives itself, classOf the class of any name.
	nameOf  map[string]corev1.ResourceName
	classOf map[corev1.ResourceName]*resourceapi.DeviceClass
}

// newRules reads the classes. Without the gate of extended resources no name stands for a class.
func newRules(set gates.Set, classes []*resourceapi.DeviceClass) rules {
	return rules{nameOf: plan.ExtendedNames(set, classes), classOf: plan.ExtendedClasses(set, classes)}
}

// concerns says whether a resource of a quota is about claims or devices.
func (r rules) concerns(name corev1.ResourceName) bool {
	if name == plan.ClaimCount || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) {
		return true
	}
	requested, ok := cutRequests(name)
	return ok && r.classOf[requested] != nil
}

// claim returns what a claim is charged. Devices that are charged to the claim's pod already, as an extended resource, are not charged to
// the extended resource again.
func (r rules) claim(spec *resourceapi.ResourceClaimSpec, ofPod corev1.ResourceList) charges {
	list := plan.Charge(spec)
	plan.AddExtended(list, r.nameOf, ofPod)
	return whole(list)
}

// existing returns what a claim of the snapshot is charged.
func (r rules) existing(claim *resourceapi.ResourceClaim, pods map[string]*corev1.Pod) charges {
	var ofPod corev1.ResourceList
	if owner := metav1.GetControllerOf(claim); owner != nil && claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		if pod := pods[podKey(claim.Namespace, owner.Name, string(owner.UID))]; pod != nil {
			ofPod = plan.PodCharge(pod, r.classOf)
		}
	}
	return r.claim(&claim.Spec, ofPod)
}

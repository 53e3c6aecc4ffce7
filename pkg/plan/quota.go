// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

// ClaimCount is the resource of a ResourceQuota that counts ResourceClaims.
const ClaimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// Charge returns what a claim counts in ResourceQuotas, as the API server counts it when the claim is created: one claim, and for each
// class the devices that its requests could get at most. Administrators' access counts like any other, a share like a device.
func Charge(spec *resourceapi.ResourceClaimSpec) corev1.ResourceList {
	counts := map[corev1.ResourceName]int64{ClaimCount: 1}
	for _, request := range spec.Devices.Requests {
		if e := request.Exactly; e != nil {
			counts[classResource(e.DeviceClassName)] += devices(e.AllocationMode, e.Count)
			continue
		}
		most := map[corev1.ResourceName]int64{}
		for _, sub := range request.FirstAvailable {
			name := classResource(sub.DeviceClassName)
			most[name] = max(most[name], devices(sub.AllocationMode, sub.Count))
		}
		for name, n := range most {
			counts[name] += n
		}
	}
	out := corev1.ResourceList{}
	for name, n := range counts {
		out[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return out
}

// classResource is the resource of a ResourceQuota that counts devices of a class.
func classResource(class string) corev1.ResourceName {
	return corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
}

// devices is how many devices a request counts for.
func devices(mode resourceapi.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourceapi.DeviceAllocationModeExactCount:
		return count
	case resourceapi.DeviceAllocationModeAll:
		return resourceapi.AllocationResultsMaxSize
	}
	return 0
}

// AddExtended adds to the charge of a claim what it counts as the extended resources of its classes: by the name that a class has in
// names, and by the name that every class has. ofPod is what the claim's pod is charged already, as PodCharge returns it: that is left out.
func AddExtended(charge corev1.ResourceList, names map[string]corev1.ResourceName, ofPod corev1.ResourceList) {
	for name, quantity := range maps.Clone(charge) {
		class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ok || names[class] == "" {
			continue // a quota counts claims of those classes alone that have a name of their own
		}
		for _, extended := range []corev1.ResourceName{
			corev1.DefaultResourceRequestsPrefix + names[class], corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass + class),
		} {
			rest := quantity.DeepCopy()
			rest.Sub(ofPod[extended])
			if rest.Sign() > 0 {
				charge[extended] = rest
			}
		}
	}
}

// PodCharge returns what a pod counts in ResourceQuotas for extended resources that classes stand for. A pod that has ended counts nothing.
func PodCharge(pod *corev1.Pod, classes map[corev1.ResourceName]*resourceapi.DeviceClass) corev1.ResourceList {
	out := corev1.ResourceList{}
	if podspec.Ended(pod) {
		return out
	}
	for name, quantity := range requested(pod) {
		if classes[name] != nil && !quantity.IsZero() {
			out[corev1.DefaultResourceRequestsPrefix+name] = quantity
		}
	}
	return out
}

// ExtendedNames returns the names that classes give themselves, by class.
func ExtendedNames(set gates.Set, classes []*resourceapi.DeviceClass) map[string]corev1.ResourceName {
	out := map[string]corev1.ResourceName{}
	for _, class := range classes {
		if name := class.Spec.ExtendedResourceName; name != nil && set.On(gates.ExtendedResource) {
			out[class.Name] = corev1.ResourceName(*name)
		}
	}
	return out
}

// Charge returns what a claim counts in the ResourceQuotas of its namespace: as the function of this name, and the devices of a class as
// its extended resources too, unless the pod is charged for them already.
func (c *Cluster) Charge(claim *resourceapi.ResourceClaim) corev1.ResourceList {
	charge := Charge(&claim.Spec)
	var ofPod corev1.ResourceList
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		ofPod = c.podCharges[owner.UID]
	}
	AddExtended(charge, c.extendedNameOf, ofPod)
	return charge
}

// chargePods counts what the pods of the snapshot are charged.
func (c *Cluster) chargePods() {
	for _, pod := range c.Pods {
		if charge := PodCharge(pod, c.extended); len(charge) > 0 {
			c.podCharges[pod.UID] = charge
			c.charge(pod.Namespace, charge)
		}
	}
}

// charge adds to what is used of the quotas of a namespace.
func (c *Cluster) charge(namespace string, more corev1.ResourceList) {
	if c.charged[namespace] == nil {
		c.charged[namespace] = corev1.ResourceList{}
	}
	add(c.charged[namespace], more)
}

// withinQuota says which ResourceQuota a new claim would exceed. What is used is counted from the claims and pods of the namespace, since
// the status of a quota is older than a plan.
func (c *Cluster) withinQuota(claim *resourceapi.ResourceClaim, before []PodClaim) error {
	for _, quota := range c.Quotas {
		if quota.Namespace != claim.Namespace || len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue // quotas with a scope are not for claims
		}
		used := corev1.ResourceList{}
		add(used, c.charged[claim.Namespace])
		for _, p := range before {
			if p.New {
				add(used, c.Charge(p.Claim))
			}
		}
		if err := exceeded(quota, used, c.Charge(claim)); err != nil {
			return fmt.Errorf("%w; the ResourceClaim is made when claims of namespace %s are deleted or the quota is raised", err, claim.Namespace)
		}
	}
	return nil
}

// exceeded says which of a quota's limits would be exceeded.
func exceeded(quota *corev1.ResourceQuota, used, charge corev1.ResourceList) error {
	for _, name := range slices.Sorted(maps.Keys(quota.Spec.Hard)) {
		needed, charged := charge[name]
		if !charged {
			continue
		}
		hard, has := quota.Spec.Hard[name], used[name]
		sum := has.DeepCopy()
		sum.Add(needed)
		if sum.Cmp(hard) > 0 {
			return fmt.Errorf("exceeded quota: %s, requested: %s=%s, used: %s=%s, limited: %s=%s",
				quota.Name, name, needed.String(), name, has.String(), name, hard.String())
		}
	}
	return nil
}

// add adds quantities to a list.
func add(list, more corev1.ResourceList) {
	for name, quantity := range more {
		sum := list[name]
		sum.Add(quantity)
		list[name] = sum
	}
}

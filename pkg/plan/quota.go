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

	"github.com/fettle-dev/fettle/pkg/plan/gates"
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

// Charge returns what a claim counts in the ResourceQuotas of its namespace: as the function of this name, and the devices of a class as
// its extended resource too, unless the pod is charged for that already.
func (c *Cluster) Charge(claim *resourceapi.ResourceClaim) corev1.ResourceList {
	charge := Charge(&claim.Spec)
	if !c.Gates.On(gates.ExtendedResource) || claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		return charge
	}
	for name, quantity := range maps.Clone(charge) {
		className, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		class := c.Classes[className]
		if !ok || class == nil || class.Spec.ExtendedResourceName == nil {
			continue
		}
		charge[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+className)] = quantity
		charge[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*class.Spec.ExtendedResourceName)] = quantity
	}
	return charge
}

// withinQuota says which ResourceQuota a new claim would exceed. What is used is counted from the claims of the namespace, since the
// status of a quota is older than a plan.
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

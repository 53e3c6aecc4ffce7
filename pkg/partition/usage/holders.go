// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// holders are the claims that have a device, by its pool and name.
type holders map[[2]string][]Claim

// holdersOf reads the allocations of claims. A claim is named once for a device of which it has several shares.
func holdersOf(o Objects) holders {
	found := holders{}
	for _, c := range o.Claims {
		if c.Status.Allocation == nil {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			if r.Driver != o.Driver {
				continue
			}
			found.add([2]string{r.Pool, r.Device}, Claim{
				Namespace: c.Namespace, Name: c.Name, AdminAccess: r.AdminAccess != nil && *r.AdminAccess,
			}, r)
		}
	}
	for _, claims := range found {
		slices.SortFunc(claims, func(a, b Claim) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), compareBool(a.AdminAccess, b.AdminAccess))
		})
	}
	return found
}

// add adds a result of a claim.
func (h holders) add(key [2]string, claim Claim, r *resourceapi.DeviceRequestAllocationResult) {
	i := slices.IndexFunc(h[key], func(c Claim) bool {
		return c.Namespace == claim.Namespace && c.Name == claim.Name && c.AdminAccess == claim.AdminAccess
	})
	if i < 0 {
		i, h[key] = len(h[key]), append(h[key], claim)
	}
	if claim.AdminAccess || r.ShareID == nil {
		return
	}
	one := &h[key][i]
	one.Shares++
	for name, amount := range r.ConsumedCapacity {
		if one.Granted == nil {
			one.Granted = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		sum := one.Granted[name].DeepCopy()
		sum.Add(amount)
		one.Granted[name] = sum
	}
}

// hold says whether a claim has a device for itself or with others. Admin access takes nothing.
func (h holders) hold(pool, name string) bool {
	return slices.ContainsFunc(h[[2]string{pool, name}], func(c Claim) bool { return !c.AdminAccess })
}

// notPublished are the allocated devices that are in no slice of a pool that is whole.
func notPublished(pools []*pool, holders holders) []Problem {
	published, incomplete := map[[2]string]bool{}, map[string]bool{}
	for _, p := range pools {
		incomplete[p.name] = p.missing != 0
		for _, d := range p.devices {
			published[[2]string{p.name, d.Name}] = true
		}
	}
	var problems []Problem
	for at, claims := range holders {
		if published[at] || incomplete[at[0]] {
			continue
		}
		for _, c := range claims {
			problems = append(problems, Problem{c.Namespace + "/" + c.Name, ReasonNotPublished, fmt.Sprintf(
				"the claim has device %s of pool %s, which is not published: the scheduler counts what it takes as free", at[1], at[0])})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Message, b.Message))
	})
	return problems
}

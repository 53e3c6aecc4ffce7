// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TenantError refuses a region of a chip on which claims are that must not meet this one.
type TenantError struct {
	// Device is the region that was asked for, Sibling the one that another claim holds, Claim that claim's namespace/name.
	Device, Sibling, Claim string
	// Rule is the co-tenancy that keeps them apart.
	Rule v1alpha1.CoTenancy
}

// Error says who is in the way and what helps.
func (e *TenantError) Error() string {
	return fmt.Sprintf("device %s: claim %s holds %s of the same chip, and policy.coTenancy %s keeps them apart: "+
		"retried until that claim is gone; delete the pod to let the scheduler choose another chip", e.Device, e.Claim, e.Sibling, e.Rule)
}

// cards are the names under which the chips of an allocation's regions are locked, so that who may be on a chip is decided by one claim
// at a time. Their regions are programmed one at a time anyway.
func (e *Engine) cards(a claim.Allocation) []string {
	machine := e.Machine()
	if machine == nil {
		return nil
	}
	var names []string
	for i := range a.Results {
		r := &a.Results[i]
		dev, ok := machine.Find(r.Kind, r.Device)
		if name := "card/" + cardOf(dev); ok && cardOf(dev) != "" && !r.AdminAccess && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func cardOf(d device.Device) string {
	if d.Region == nil {
		return ""
	}
	return d.Region.Card
}

// mayMeet says why a claim cannot be on a region's chip together with those that are there. The caller holds the chip's lock. A claim
// whose record cannot be read, or that another version of the plugin prepared, counts as the strictest.
func (e *Engine) mayMeet(c *resourceapi.ResourceClaim, result *claim.Result, dev device.Device, machine Machine) error {
	if cardOf(dev) == "" || result.AdminAccess || result.Config.FPGA == nil {
		return nil
	}
	for _, sibling := range machine.All() {
		if sibling.Name == dev.Name || cardOf(sibling) != cardOf(dev) {
			continue
		}
		holders, err := e.Store.Holders(e.poolOf(sibling), sibling.Name)
		if err != nil {
			return err
		}
		for _, uid := range holders {
			if uid == string(c.UID) {
				continue
			}
			if rule, who, apart := e.apart(uid, sibling, c.Namespace, result.Config.FPGA.CoTenancy); apart {
				return &TenantError{Device: dev.Name, Sibling: sibling.Name, Claim: who, Rule: rule}
			}
		}
	}
	return nil
}

// apart says whether a holder of a sibling and a claim of a namespace must not meet, and by whose rule.
func (e *Engine) apart(
	uid string, sibling device.Device, namespace string, own v1alpha1.CoTenancy,
) (rule v1alpha1.CoTenancy, who string, apart bool) {
	other, who, theirNamespace := v1alpha1.CoTenancyExclusive, "with UID "+uid, ""
	if r, err := e.Store.Load(uid); err == nil {
		who, theirNamespace = r.Namespace+"/"+r.Name, r.Namespace
		i := slices.IndexFunc(r.Devices, func(d record.Device) bool { return d.Name == sibling.Name && d.Pool == e.poolOf(sibling) })
		if i >= 0 && r.Devices[i].CoTenancy != "" {
			other = v1alpha1.CoTenancy(r.Devices[i].CoTenancy)
		}
	}
	rule = other
	if own.Rank() < other.Rank() {
		rule = own
	}
	switch rule {
	case v1alpha1.CoTenancyShared:
		return rule, who, false
	case v1alpha1.CoTenancySameNamespace:
		return rule, who, theirNamespace != namespace
	default:
		return v1alpha1.CoTenancyExclusive, who, true
	}
}

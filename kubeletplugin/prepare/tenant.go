// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TenantError refuses a region of a chip because of a claim on another region of that chip.
type TenantError struct {
	// Device is the allocated region, Sibling a region that another claim holds, Claim that claim's namespace/name, Namespace that of the
	// claim that asked.
	Device, Sibling, Claim, Namespace string
	// Rule is the stricter co-tenancy of the two claims.
	Rule v1alpha1.CoTenancy
}

// Error says what is in the way and the remedy. It names the other claim only to that claim's own namespace.
func (e *TenantError) Error() string {
	other := "another claim"
	if strings.HasPrefix(e.Claim, e.Namespace+"/") {
		other = "claim " + e.Claim
	}
	return fmt.Sprintf("device %s: %s holds %s of the same chip, and policy.coTenancy %s keeps them apart: "+
		"retried until that claim is gone; delete the pod to let the scheduler choose another chip", e.Device, other, e.Sibling, e.Rule)
}

// cardLocks returns the lock names of the chips of an allocation's regions, so that one claim at a time checks co-tenancy on a chip. The
// regions of a chip are programmed one at a time anyway.
func (e *Engine) cardLocks(a claim.Allocation) []string {
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

// checkCoTenancy refuses a region while an incompatible claim holds another region of its chip. The caller has locked the chip. A claim
// counts as the strictest if its record is unreadable or has no co-tenancy, as from another version of the plugin.
func (e *Engine) checkCoTenancy(c *resourceapi.ResourceClaim, result *claim.Result, dev device.Device, machine Machine) error {
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
			if rule, holder, conflict := e.coTenancyConflict(uid, sibling, c.Namespace, result.Config.FPGA.CoTenancy); conflict {
				return &TenantError{Device: dev.Name, Sibling: sibling.Name, Claim: holder, Namespace: c.Namespace, Rule: rule}
			}
		}
	}
	return nil
}

// coTenancyConflict reports whether the holder of a sibling conflicts with a claim of a namespace. It also returns the stricter rule and
// the name of the holder.
func (e *Engine) coTenancyConflict(
	uid string, sibling device.Device, namespace string, own v1alpha1.CoTenancy,
) (rule v1alpha1.CoTenancy, holder string, conflict bool) {
	other, holder, theirNamespace := v1alpha1.CoTenancyExclusive, "with UID "+uid, ""
	if r, err := e.Store.Load(uid); err == nil {
		holder, theirNamespace = r.Namespace+"/"+r.Name, r.Namespace
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
		return rule, holder, false
	case v1alpha1.CoTenancySameNamespace:
		return rule, holder, theirNamespace != namespace
	default:
		return v1alpha1.CoTenancyExclusive, holder, true
	}
}

// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"fmt"
	"slices"
	"strings"

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

// CardLocks returns the lock names of the chips of an allocation's regions, so that one claim at a time checks co-tenancy on a chip. The
// regions of a chip are programmed one at a time anyway. It returns none before the first scan, when machine is nil.
func CardLocks(machine Machine, a claim.Allocation) []string {
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

// CoTenancy refuses a region while an incompatible claim holds another region of its chip. The caller has locked the chip. A claim
// counts as the strictest if its record is unreadable or has no co-tenancy, as from another version of the plugin. It has its chip, too,
// while the driver does not show its region.
func (c Check) CoTenancy(asked *record.Record, result *claim.Result, dev device.Device) error {
	if cardOf(dev) == "" || result.AdminAccess || result.Config.FPGA == nil {
		return nil
	}
	for _, sibling := range c.Machine.RegionsOf(cardOf(dev)) {
		if sibling == dev.Name {
			continue
		}
		holders, err := c.Store.Holders(c.pool(dev), sibling)
		if err != nil {
			return err
		}
		for _, uid := range holders {
			if uid == asked.UID {
				continue
			}
			if rule, holder, conflict := c.tenants(uid, c.pool(dev), sibling, asked.NamespaceUID, result.Config.FPGA.CoTenancy); conflict {
				return &TenantError{Device: dev.Name, Sibling: sibling, Claim: holder, Namespace: asked.Namespace, Rule: rule}
			}
		}
	}
	return nil
}

// tenants reports whether the holder of a sibling conflicts with a claim of a namespace, which its UID names. It also returns the
// stricter rule and the name of the holder. A holder of which no namespace is recorded, as by an older version, is of another one.
func (c Check) tenants(
	uid, pool, sibling, tenant string, own v1alpha1.CoTenancy,
) (rule v1alpha1.CoTenancy, holder string, conflict bool) {
	other, holder, theirTenant := v1alpha1.CoTenancyExclusive, "with UID "+uid, ""
	if r, err := c.Store.Load(uid); err == nil {
		holder, theirTenant = r.Namespace+"/"+r.Name, r.NamespaceUID
		if held := r.Held(pool, sibling); held != nil && held.CoTenancy != "" {
			other = v1alpha1.CoTenancy(held.CoTenancy)
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
		return rule, holder, theirTenant == "" || theirTenant != tenant
	default:
		return v1alpha1.CoTenancyExclusive, holder, true
	}
}

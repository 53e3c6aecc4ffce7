// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Review adds the known content of regions to a snapshot, withholds regions with unknown content, and finds the free regions of chips that
// claims hold.
func (f *Feature) Review(ctx context.Context, s *inventory.Snapshot) {
	s.HiddenRegions = f.known.note(ctx, s.Devices)
	f.addContents(s)
	s.Tenants = f.tenantsOf(s)
}

// tenancy limits which claims may join on a chip. Its zero value is no limit.
type tenancy struct {
	// tenant is the UID of the namespace or of the claim that may join. Everybody who reads slices sees it, so it is no name.
	tenant string
	// exclusive: tenant is a claim, which does not share the chip.
	exclusive bool
}

// tenantsOf returns the free regions of chips that claims hold, with the tenant that may join there. If a claim holds regions of a chip
// under several rules, the strictest counts.
func (f *Feature) tenantsOf(s *inventory.Snapshot) map[string]string {
	cards := map[string]tenancy{}
	held := map[string]bool{}
	add := func(name, card string) {
		t, holds := f.tenancyAt(name)
		held[name] = holds
		if t.tenant != "" && !cards[card].exclusive {
			cards[card] = t
		}
	}
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Region != nil {
			add(d.Name, d.Region.Card)
		}
	}
	for name, card := range s.HiddenRegions {
		add(name, card)
	}
	tenants := map[string]string{}
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Region != nil && !held[d.Name] && cards[d.Region.Card].tenant != "" {
			tenants[d.Name] = cards[d.Region.Card].tenant
		}
	}
	return tenants
}

// tenancyAt returns the tenancy of a region, and whether a claim holds it. A claim whose record cannot be read does not share its chip, as
// when another claim asks to join it.
func (f *Feature) tenancyAt(name string) (t tenancy, held bool) {
	r, uid := f.holder(name)
	switch {
	case uid == "":
		return tenancy{}, false
	case r == nil:
		return tenancy{tenant: uid, exclusive: true}, true
	default:
		return tenancyOf(r, name), true
	}
}

// unknownHolder stands for the UID of a claim where nobody can tell who holds a device.
const unknownHolder = "unknown"

// holder returns the record and the UID of the claim that holds a region. The record is nil if it cannot be read. A free region gives "".
func (f *Feature) holder(name string) (r *record.Record, uid string) {
	uids, err := f.Records.Holders(device.PoolName(f.Node, device.KindFPGA), name)
	switch {
	case err != nil:
		return nil, unknownHolder
	case len(uids) == 0:
		return nil, ""
	}
	for _, uid := range uids {
		if r, err := f.Records.Load(uid); err == nil {
			return r, uid
		}
	}
	return nil, uids[0]
}

// tenancyOf returns the tenancy that a claim's device has.
func tenancyOf(r *record.Record, name string) tenancy {
	i := slices.IndexFunc(r.Devices, func(d record.Device) bool { return d.Name == name && !d.AdminAccess })
	if i < 0 { // its record was lost and made again without the device
		return tenancy{tenant: r.UID, exclusive: true}
	}
	switch v1alpha1.CoTenancy(r.Devices[i].CoTenancy) {
	case v1alpha1.CoTenancyShared:
		return tenancy{}
	case v1alpha1.CoTenancySameNamespace:
		if r.NamespaceUID == "" {
			return tenancy{tenant: r.UID, exclusive: true} // an older version prepared it, and noted the name only
		}
		return tenancy{tenant: r.NamespaceUID}
	default:
		return tenancy{tenant: r.UID, exclusive: true}
	}
}

// addContents adds the digest of each region's content, and withholds regions with unknown content, unless the claim that left it unknown
// still exists and can program the region again.
func (f *Feature) addContents(v *inventory.Snapshot) {
	for i := range v.Devices {
		d := &v.Devices[i]
		if d.Region == nil {
			continue
		}
		content, err := f.contents.Read(d.Name)
		if err != nil {
			v.Withhold(d.Name, d.Name, discover.ReasonRegionUnknown, err)
			continue
		}
		if content.Unknown {
			if r, _ := f.holder(d.Name); r == nil || r.Phase == record.Releasing {
				v.Withhold(d.Name, d.Name, discover.ReasonRegionUnknown, fmt.Errorf("its content is not known since a programming for claim "+
					"%s failed or was cut off: bind its device to the driver again, or see the Events of the claim", content.Claim))
			}
			continue
		}
		if tenant := content.Data(); tenant != "" {
			setText(d, device.AttributeMemoryTenant, f.shownTenant(tenant))
		}
		if content.Digest == "" || content.BootID != f.BootID || !showsImage(d, content.AFU) {
			continue
		}
		// An attribute has at most 64 characters, as many as the digits.
		setText(d, device.AttributeBitstreamDigest, strings.TrimPrefix(content.Digest, "sha256:"))
	}
}

// severalTenants is what a region's content says of data of more than one tenant. It names none, and is shown as it is.
const severalTenants = "*"

// shownTenant returns what slices say of a tenant. Whoever makes pods can read attributes by the errors of CEL, so it is no name.
func (f *Feature) shownTenant(tenant string) string {
	if tenant == severalTenants {
		return tenant
	}
	return f.Names.Tenant(tenant)
}

// setText sets an attribute without changing the map, which earlier snapshots share.
func setText(d *device.Device, name resourceapi.QualifiedName, text string) {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{name: {StringValue: &text}}
	for other, value := range d.Attributes {
		if other != name {
			attributes[other] = value
		}
	}
	d.Attributes = attributes
}

// showsImage reports whether a region shows an image, or has no readback.
func showsImage(d *device.Device, afu string) bool {
	shown := d.Attributes[device.AttributeAFUID].StringValue
	return d.Region.NoReadback() || shown != nil && *shown == afu
}

// Programmed returns the known content of the claim's regions since its Prepare, by POOL/DEVICE.
func (f *Feature) Programmed(r *record.Record) (map[string]region.Programmed, error) {
	out := map[string]region.Programmed{}
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.CoTenancy == "" || d.AdminAccess {
			continue // no region
		}
		content, err := f.contents.Read(d.Name)
		if err != nil {
			return nil, err
		}
		if !content.Unknown && content.Digest != "" && content.BootID == f.BootID && content.Claim == r.UID {
			out[d.Pool+"/"+d.Name] = region.Programmed{Digest: content.Digest, AFUID: content.AFU}
		}
	}
	return out, nil
}

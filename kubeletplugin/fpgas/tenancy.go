// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"fmt"
	"maps"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Review says which bytes regions are known to hold, keeps back those whose content is not known, and finds the free regions of chips that
// are held.
func (f *Feature) Review(_ context.Context, s *inventory.Snapshot) {
	f.addContents(s)
	s.Tenants = f.tenantsOf(s.Devices)
}

// tenancy is who may join those that hold regions of a chip. Empty: everybody.
type tenancy struct {
	who string
	// alone: who is a claim, which shares with nobody.
	alone bool
}

// tenantsOf finds the free regions of chips that are held, and who may join there. Where one claim holds regions of a chip under several
// rules, the strictest counts.
func (f *Feature) tenantsOf(devices []device.Device) map[string]string {
	cards := map[string]tenancy{}
	held := map[string]bool{}
	for i := range devices {
		d := &devices[i]
		if d.Region == nil {
			continue
		}
		t, holds := f.tenancyAt(d)
		held[d.Name] = holds
		if t.who != "" && !cards[d.Region.Card].alone {
			cards[d.Region.Card] = t
		}
	}
	tenants := map[string]string{}
	for i := range devices {
		if d := &devices[i]; d.Region != nil && !held[d.Name] && cards[d.Region.Card].who != "" {
			tenants[d.Name] = cards[d.Region.Card].who
		}
	}
	return tenants
}

// tenancyAt says whether a claim holds a region, and who may join it. A claim whose record cannot be read shares with nobody, as when
// another asks to join it.
func (f *Feature) tenancyAt(d *device.Device) (t tenancy, held bool) {
	r, uid := f.holder(d)
	switch {
	case uid == "":
		return tenancy{}, false
	case r == nil:
		return tenancy{who: uid, alone: true}, true
	default:
		return tenancyOf(r, d.Name), true
	}
}

// holder is the claim that holds a device, and its record, nil where it cannot be read. Nobody: an empty UID.
func (f *Feature) holder(d *device.Device) (r *record.Record, uid string) {
	uids, err := f.Records.Holders(inventory.PoolName(f.Node, d.Kind), d.Name)
	if err != nil || len(uids) == 0 {
		return nil, ""
	}
	for _, uid := range uids {
		if r, err := f.Records.Load(uid); err == nil {
			return r, uid
		}
	}
	return nil, uids[0]
}

// tenancyOf is who may join a claim on its chip.
func tenancyOf(r *record.Record, name string) tenancy {
	for i := range r.Devices {
		if d := &r.Devices[i]; d.Name == name && !d.AdminAccess {
			switch v1alpha1.CoTenancy(d.CoTenancy) {
			case v1alpha1.CoTenancyShared:
				return tenancy{}
			case v1alpha1.CoTenancySameNamespace:
				return tenancy{who: r.Namespace}
			default:
				return tenancy{who: r.UID, alone: true}
			}
		}
	}
	return tenancy{}
}

// addContents says which bytes a region is known to hold, and keeps back one of which nobody knows what it holds, unless the claim
// that made it so is still there to put it right.
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
			if r, _ := f.holder(d); r == nil || r.Phase == record.Releasing {
				v.Withhold(d.Name, d.Name, discover.ReasonRegionUnknown, fmt.Errorf("what it holds is not known since a programming for claim "+
					"%s failed or was cut off: bind its device to the driver anew, or see the Events of the claim", content.Claim))
			}
			continue
		}
		if content.Digest == "" || content.BootID != f.BootID || !shows(d, content.AFU) {
			continue
		}
		d.Attributes = maps.Clone(d.Attributes)
		// An attribute has 64 characters at most, which is what the digits take.
		digits := strings.TrimPrefix(content.Digest, "sha256:")
		d.Attributes[device.AttributeBitstreamDigest] = resourceapi.DeviceAttribute{StringValue: &digits}
	}
}

// shows says whether a region shows an image, or could never.
func shows(d *device.Device, afu string) bool {
	shown := d.Attributes[device.AttributeAFUID].StringValue
	return d.Region.NoReadback() || shown != nil && *shown == afu
}

// Programmed is what the claim's regions are known to hold since its Prepare, by POOL/DEVICE.
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

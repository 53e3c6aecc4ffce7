// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"maps"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/record"
)

// tenantTaint is the key of the taint on the free regions of a chip that somebody holds. Its value is the namespace whose claims may
// join, or the UID of the claim that shares with nobody.
const tenantTaint = v1alpha1.GroupName + "/tenant"

// tenancy is who may join those that hold regions of a chip. Empty: everybody.
type tenancy struct {
	who string
	// alone: who is a claim, which shares with nobody.
	alone bool
}

// tenantsOf finds the free regions of chips that are held, and who may join there. Where one claim holds regions of a chip under several
// rules, the strictest counts.
func (l *looker) tenantsOf(devices []device.Device) map[string]string {
	cards := map[string]tenancy{}
	held := map[string]bool{}
	for i := range devices {
		d := &devices[i]
		if d.Region == nil {
			continue
		}
		t, holds := l.tenancyAt(d)
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
func (l *looker) tenancyAt(d *device.Device) (t tenancy, held bool) {
	r, uid := l.holder(d)
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
func (l *looker) holder(d *device.Device) (r *record.Record, uid string) {
	uids, err := l.store.Holders(poolName(l.config.Node, d.Kind), d.Name)
	if err != nil || len(uids) == 0 {
		return nil, ""
	}
	for _, uid := range uids {
		if r, err := l.store.Load(uid); err == nil {
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

// taintTenant keeps other tenants away from a chip that is held.
func taintTenant(d *resourceapi.Device, tenants map[string]string) {
	if tenant := tenants[d.Name]; tenant != "" {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: tenantTaint, Value: tenant, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
}

// addContents says which bytes a region is known to hold, and keeps back one of which nobody knows what it holds, unless the claim
// that made it so is still there to put it right.
func (l *looker) addContents(v *view) {
	for i := range v.devices {
		d := &v.devices[i]
		if d.Region == nil {
			continue
		}
		content, err := l.contents.Read(d.Name)
		if err != nil {
			v.withhold(d.Name, d.Name, discover.ReasonRegionUnknown, err)
			continue
		}
		if content.Unknown {
			if r, _ := l.holder(d); r == nil || r.Phase == record.Releasing {
				v.withhold(d.Name, d.Name, discover.ReasonRegionUnknown, fmt.Errorf("what it holds is not known since a programming for claim "+
					"%s failed or was cut off: bind its device to the driver anew, or see the Events of the claim", content.Claim))
			}
			continue
		}
		if content.Digest == "" || content.BootID != l.bootID || !shows(d, content.AFU) {
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
	return d.Region.Mute() || shown != nil && *shown == afu
}

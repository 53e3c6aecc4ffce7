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

// tenantsOf finds the free regions of chips that are held, and who may join there.
func (l *looker) tenantsOf(devices []device.Device) map[string]string {
	cards := map[string]string{}
	held := map[string]bool{}
	for i := range devices {
		d := &devices[i]
		if d.Region == nil {
			continue
		}
		r := l.holder(d)
		if r == nil {
			continue
		}
		held[d.Name] = true
		if tenant := tenantOf(r, d.Name); tenant != "" {
			cards[d.Region.Card] = tenant
		}
	}
	tenants := map[string]string{}
	for i := range devices {
		if d := &devices[i]; d.Region != nil && !held[d.Name] && cards[d.Region.Card] != "" {
			tenants[d.Name] = cards[d.Region.Card]
		}
	}
	return tenants
}

// holder is the record of a claim that holds a device, nil where there is none or it cannot be read.
func (l *looker) holder(d *device.Device) *record.Record {
	uids, err := l.store.Holders(poolName(l.config.Node, d.Kind), d.Name)
	if err != nil {
		return nil
	}
	for _, uid := range uids {
		if r, err := l.store.Load(uid); err == nil {
			return r
		}
	}
	return nil
}

// tenantOf is who may join a claim on its chip; empty: everybody.
func tenantOf(r *record.Record, name string) string {
	for i := range r.Devices {
		if d := &r.Devices[i]; d.Name == name && !d.AdminAccess {
			switch v1alpha1.CoTenancy(d.CoTenancy) {
			case v1alpha1.CoTenancyShared:
				return ""
			case v1alpha1.CoTenancySameNamespace:
				return r.Namespace
			default:
				return r.UID
			}
		}
	}
	return ""
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
			if r := l.holder(d); r == nil || r.Phase == record.Releasing {
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

// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"slices"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// Settled returns a device on which no claim has anything as it is once its node did what a division wants: instances of a layout exist,
// modes are switched, virtual functions made. What only the machine can say of these is missing: UUIDs of instances, and addresses of
// functions.
func Settled(p Physical, s Settings, now Division) Physical {
	if s.MIG != nil && p.MIG != nil {
		p.MIG = settledMIG(&p, s.MIG, now)
	}
	if want := s.SRIOV; want != nil && p.Functions != nil && len(p.Functions.Enabled) != want.VirtualFunctions {
		p.Functions = &Functions{Total: p.Functions.Total, Expected: want.VirtualFunctions}
	}
	if want := s.AMD; want != nil && want.Compute != "" && p.AMD != nil && now.Card == nil {
		changed := *p.AMD
		if changed.check(amdMode{want.Compute, changed.Memory}) == nil {
			changed.Compute, p.AMD = want.Compute, &changed
		}
	}
	return p
}

// settledMIG is what NVIDIA's library says of a GPU then.
func settledMIG(p *Physical, want *MIG, now Division) *nvml.MIG {
	m := *p.MIG
	m.Instances = slices.DeleteFunc(slices.Clone(m.Instances), func(i nvml.MIGInstance) bool {
		return slices.ContainsFunc(now.Destroy, func(gone nvml.MIGInstance) bool { return gone.ID == i.ID })
	})
	for _, slot := range now.Create {
		m.Instances = append(m.Instances, nvml.MIGInstance{ProfileID: slot.ProfileID, Placement: slot.Placement, Compute: []nvml.MIGCompute{{}}})
	}
	switch {
	case want.Mode == MIGStatic:
		m.Current = m.Current || len(now.Create) > 0
	case want.Mode == MIGDisabled:
		m.Current = m.Current && len(m.Instances) > 0
	case MIGNeedsReset(p.Device):
		m.Current = true
	}
	return &m
}

// Unforeseen says whether a device that is published of a settled one will have an attribute which only the machine can say.
func Unforeseen(d *device.Device) bool {
	switch device.StringOf(d.Attributes[device.AttributeType]) {
	case device.TypeMIG:
		_, known := d.Attributes[device.AttributeUUID]
		return !known
	case device.TypeVF:
		_, known := d.Attributes[device.AttributePCIAddress]
		return !known
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// The standard attributes that a part has as its whole has them.
const (
	standardPCIBusID = deviceattribute.StandardDeviceAttributePCIBusID
	standardPCIeRoot = deviceattribute.StandardDeviceAttributePCIeRoot
	standardNUMANode = deviceattribute.StandardDeviceAttributeNUMANode
)

// needsReset is the architecture whose MIG mode changes only with a reset of the GPU, which nothing may use then: never while a claim is
// prepared. Later ones need none (NVIDIA, MIG User Guide).
const needsReset = "Ampere"

// mig adds the instances of an NVIDIA GPU.
func (d *division) mig() {
	m, want := d.physical.MIG, d.settings.MIG
	if m == nil {
		d.withoutMIG(want)
		return
	}
	switch {
	case want != nil && want.Mode == MIGDynamic:
		d.dynamicMIG(m, want)
		d.destroyOthers(m, nil)
	case want != nil && want.Mode == MIGStatic:
		d.staticMIG(m, want)
	case m.Current:
		d.withholdWhole(ReasonMIGMode, "the GPU is in MIG mode, where programs can use its instances only: switch MIG mode off, or let a "+
			"PartitionPolicy divide the GPU")
	}
	if want != nil && want.Mode == MIGDisabled {
		d.destroyOthers(m, nil)
	}
	d.keepHeld(m)
	if len(d.parts) > 0 && d.counters {
		d.total.raise(cardAmounts(d.physical.Device, m))
	}
}

// withoutMIG says why nothing is made of a GPU that could not be divided. One that the library says nothing of may be in MIG mode.
func (d *division) withoutMIG(want *MIG) {
	leaves := want == nil || want.Mode == MIGDisabled
	switch {
	case leaves && (!d.physical.MIGUnknown || !d.physical.Divided):
	case d.physical.MIGUnknown:
		d.withholdWhole(ReasonMIGMode, "NVIDIA's library did not say how the GPU is divided: it is asked again")
	case architecture(d.physical.Device) == "":
		d.withholdWhole(ReasonMIGMode, "NVIDIA's library says nothing of the GPU, so that nobody knows whether it is in MIG mode: see that "+
			"nvidia.enabled is set in the chart's values, and that nvidia-smi works on the node")
	default:
		d.reason(ReasonNotDivisible, 0, "the GPU has no MIG")
	}
}

// destroyOthers lists the instances that Fettle made, that no claim has and that are not in the layout. An instance of a profile without a
// name may be a claim's.
func (d *division) destroyOthers(m *nvml.MIG, layout []Slot) {
	for _, instance := range m.Instances {
		wanted := slices.ContainsFunc(layout, func(s Slot) bool { return s.is(instance) })
		p := slices.IndexFunc(m.Profiles, func(p nvml.MIGProfile) bool { return p.ID == instance.ProfileID })
		held := p < 0 || d.held(MIGName(d.physical.Device.Name, m.Profiles[p].Name, instance.Placement.Start))
		if !wanted && !held && !slices.Contains(d.physical.Foreign, instance.Placement) {
			d.out.Destroy = append(d.out.Destroy, instance)
		}
	}
}

// is says whether an instance is the slot's, whoever made it.
func (s Slot) is(i nvml.MIGInstance) bool {
	return i.ProfileID == s.ProfileID && i.Placement == s.Placement
}

// dynamicMIG adds a device for each placement of each allowed profile.
func (d *division) dynamicMIG(m *nvml.MIG, want *MIG) {
	profiles := d.allowed(m, want)
	count := 0
	for _, p := range profiles {
		count += len(p.Placements)
	}
	reset := MIGNeedsReset(d.physical.Device)
	switch {
	case !d.counters:
		d.noCounters(count, "dynamic MIG")
		if m.Current {
			d.withholdWhole(ReasonMIGMode, "the GPU is in MIG mode: switch MIG mode off to use it whole, or give it a static layout")
		}
		return
	case reset && !m.Current:
		d.reason(ReasonMIGMode, count, "MIG mode is off, and on this GPU only a reset switches it: the node does that while nothing uses the GPU")
		return
	case reset && m.Current:
		d.withholdWhole(ReasonMIGMode, "MIG mode is on, and on this GPU only a reset switches it off: claim the largest profile for all of it")
	}
	foreign := 0
	for _, p := range profiles {
		for _, at := range p.Placements {
			if !d.held(MIGName(d.physical.Device.Name, p.Name, at.Start)) && d.foreign(at) {
				foreign++
				continue
			}
			d.instance(p, at)
		}
	}
	if len(d.physical.Foreign) == 0 {
		return
	}
	if foreign > 0 {
		d.reason(ReasonForeignInstance, foreign, "an instance that Fettle did not make takes %s: destroy it, and its place is published",
			spans(d.physical.Foreign))
	}
	d.withholdWhole(ReasonForeignInstance, "an instance that Fettle did not make takes %s of the GPU", spans(d.physical.Foreign))
}

// foreign says whether an instance of somebody else is in the way.
func (d *division) foreign(at nvml.MIGPlacement) bool {
	return slices.ContainsFunc(d.physical.Foreign, at.Overlaps)
}

// allowed are the profiles that may be made, each name once.
func (d *division) allowed(m *nvml.MIG, want *MIG) []*nvml.MIGProfile {
	names := profileNames(m)
	for _, name := range want.Profiles {
		if !slices.Contains(names, name) {
			d.reason(ReasonUnknownProfile, 0, "profile %.64s: this GPU has %s", name, strings.Join(names, ", "))
		}
	}
	var profiles []*nvml.MIGProfile
	for _, name := range names {
		if len(want.Profiles) == 0 || slices.Contains(want.Profiles, name) {
			profiles = append(profiles, profileNamed(m, name))
		}
	}
	return profiles
}

// staticMIG adds the instances of a layout that exist, and says which have to be made and destroyed. The whole GPU is not published, for
// a claim on it would keep the layout from being made.
func (d *division) staticMIG(m *nvml.MIG, want *MIG) {
	slots, err := Place(d.physical.Device, m, want.Layout)
	if err != nil {
		d.reason(ReasonLayoutImpossible, 0, "%v", err)
		if m.Current {
			d.withholdWhole(ReasonMIGMode, "the GPU is in MIG mode, where programs can use its instances only")
		}
		return
	}
	d.whole, d.vfio = false, false
	blocked := 0
	for _, slot := range slots {
		i := slices.IndexFunc(m.Instances, slot.is)
		switch {
		case i >= 0 && len(m.Instances[i].Compute) > 0 && m.Current:
			d.existing(profileNamed(m, slot.Profile), m.Instances[i])
		case d.foreign(slot.Placement):
			blocked++
		default:
			d.out.Create = append(d.out.Create, slot)
		}
	}
	d.destroyOthers(m, slots)
	if blocked > 0 {
		d.reason(ReasonForeignInstance, blocked, "an instance that Fettle did not make takes %s: destroy it, and the layout is made",
			spans(d.physical.Foreign))
	}
	if n := len(d.out.Create); n > 0 {
		d.reason(ReasonLayoutPending, n, "instances of the layout do not exist yet: %s", d.whenMade())
	}
}

// whenMade says when the node makes the missing instances of a static layout: what a claim has, and a reboot ended, at once.
func (d *division) whenMade() string {
	again := 0
	for _, slot := range d.out.Create {
		if d.physical.Held[MIGName(d.physical.Device.Name, slot.Profile, slot.Placement.Start)] {
			again++
		}
	}
	switch {
	case !d.anyHeld() || again == len(d.out.Create):
		return "the node makes them"
	case again == 0:
		return "the node makes them once no claim has the GPU or a part of it"
	}
	return "the node makes again those that claims have, and the others once no claim has the GPU or a part of it"
}

// existing adds an instance of a static layout.
func (d *division) existing(p *nvml.MIGProfile, instance nvml.MIGInstance) {
	one := d.instance(p, instance.Placement)
	one.Instance = &instance
	if uuid := instance.Compute[0].UUID; uuid != "" {
		setText(one.device.Attributes, device.AttributeUUID, uuid)
	}
}

// keepHeld adds the instances that claims have and that are not published otherwise.
func (d *division) keepHeld(m *nvml.MIG) {
	for _, name := range profileNames(m) {
		p := profileNamed(m, name)
		for _, at := range p.Placements {
			held := MIGName(d.physical.Device.Name, name, at.Start)
			if d.held(held) && !slices.ContainsFunc(d.parts, func(p part) bool { return p.device.Name == held }) {
				d.instance(p, at)
			}
		}
	}
}

// instance adds a device for an instance at a placement.
func (d *division) instance(p *nvml.MIGProfile, at nvml.MIGPlacement) *part {
	whole := d.physical.Device
	out := derived(whole, MIGName(whole.Name, p.Name, at.Start), device.TypeMIG)
	setText(out.Attributes, device.AttributeProfile, p.Name)
	has := profileAmounts(p)
	if n := has[counterMemory]; n > 0 {
		out.Capacity[device.CapacityMemory] = device.Bytes(n)
	}
	if n := has[counterMultiprocessors]; n > 0 {
		out.Capacity[device.CapacityMultiprocessors] = device.Count(n)
	}
	d.parts = append(d.parts, part{
		Part:   Part{Parent: whole.Name, Type: device.TypeMIG, Profile: p.Name, ProfileID: p.ID, Placement: at},
		device: out, takes: placedAmounts(p, at),
	})
	return &d.parts[len(d.parts)-1]
}

// MIGNeedsReset says whether only a reset of a GPU, which nothing may use then, changes its MIG mode.
func MIGNeedsReset(d device.Device) bool { return architecture(d) == needsReset }

// architecture is the name of a device's generation.
func architecture(d device.Device) string {
	return device.StringOf(d.Attributes[device.AttributeArchitecture])
}

// spans writes placements as "memory slices 0-3, 6", by start.
func spans(placements []nvml.MIGPlacement) string {
	sorted := slices.SortedFunc(slices.Values(placements), func(a, b nvml.MIGPlacement) int { return cmp.Compare(a.Start, b.Start) })
	var parts []string
	for _, p := range sorted {
		parts = append(parts, span(p))
	}
	return "memory slices " + strings.Join(parts, ", ")
}

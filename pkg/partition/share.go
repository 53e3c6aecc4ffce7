// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/device"
)

// needsShares says whether the parts of the card have to do without counters where a device has either counters or shares: claims have
// shares now, or are to have shares of instances that nothing overlaps.
func (d *division) needsShares() bool {
	want := d.settings.MIG
	return len(d.physical.Shares) > 0 || d.kept.Shares && d.settings.Sharing != nil && want != nil && want.Mode == MIGStatic
}

// share has several claims have those devices that the settings want shared. What claims have stays as they have it: for one claim, or
// shared. If shares of it are not wanted any more, no further claim gets one.
func (d *division) share(counted bool) {
	var u unshared
	for i := range d.out.Devices {
		one := &d.out.Devices[i]
		wanted := d.settings.Sharing != nil && d.shareable(one.Name)
		sharedNow := d.physical.Shares[one.Name]
		switch {
		case sharedNow && !wanted:
			d.out.Settling, *one = append(d.out.Settling, one.Name), closed(*one)
		case !wanted:
		case d.held(one.Name) && !sharedNow:
			u.pending = append(u.pending, one.Name)
		case !sharedNow && (!d.kept.Shares || counted && !d.kept.Both):
			u.unkept = append(u.unkept, one.Name)
		default:
			*one = u.shared(*one, d.settings.Sharing, sharedNow)
		}
	}
	d.out.Settling = append(d.out.Settling, u.pending...)
	d.sayUnshared(&u)
}

// unshared are the devices that the settings want shared and that are not.
type unshared struct {
	pending, unkept, impossible []string
	// why says what is impossible.
	why error
}

// shared returns the device with shares, or as it is if that is impossible. One that claims share then has none for further claims.
func (u *unshared) shared(one device.Device, s *Sharing, sharedNow bool) device.Device {
	out, err := shared(one, s)
	if err == nil {
		return out
	}
	u.impossible, u.why = append(u.impossible, one.Name), err
	if sharedNow {
		return closed(one)
	}
	return one
}

// sayUnshared says why devices are not shared. All of them are published, so that none is counted.
func (d *division) sayUnshared(u *unshared) {
	if len(u.pending) > 0 {
		d.reason(ReasonSharingPending, 0, "a claim has %s for itself: it is shared once that claim ends", shortList(u.pending))
	}
	switch {
	case len(u.unkept) == 0:
	case !d.kept.Shares:
		d.reason(ReasonNoShares, 0, "one claim at a time has %s: sharing needs consumable capacity (DRAConsumableCapacity), which the API "+
			"server drops; enable the feature gate, on by default since Kubernetes 1.36", shortList(u.unkept))
	default:
		d.reason(ReasonNoShares, 0, "one claim at a time has %s: schedulers before Kubernetes 1.37 cannot share a device of which claims may "+
			"have parts too, or which is for virtual machines too; update Kubernetes, or write a policy without sharing or one without the rest",
			shortList(u.unkept))
	}
	if len(u.impossible) > 0 {
		d.reason(ReasonSharingImpossible, 0, "one claim at a time has %s: %v", shortList(u.impossible), u.why)
	}
}

// shareable says whether several claims could use a device at once: it is whole, or an instance that no claim's step makes and destroys.
func (d *division) shareable(name string) bool {
	if name == d.physical.Device.Name {
		return true
	}
	part := d.out.Parts[name]
	return part.Type == device.TypeMIG && part.Instance != nil
}

// shared returns the device with shares.
func shared(one device.Device, s *Sharing) (device.Device, error) {
	out := one
	out.Shared, out.Capacity = true, maps.Clone(one.Capacity)
	if out.Capacity == nil {
		out.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	}
	for name, capacity := range out.Capacity { // what is not counted takes nothing, and cannot be asked for
		capacity.RequestPolicy = onlyAmount(0, capacity.Value.Format)
		out.Capacity[name] = capacity
	}
	out.Capacity[device.CapacityShares] = resourceapi.DeviceCapacity{
		Value: *resource.NewQuantity(int64(s.MaxClaims), resource.DecimalSI), RequestPolicy: onlyAmount(1, resource.DecimalSI),
	}
	if s.Memory == nil {
		return out, nil
	}
	memory, ok := one.Capacity[device.CapacityMemory]
	if !ok {
		return one, fmt.Errorf("how much memory the device has is not known, so that it cannot be counted: %s", unknownMemory(one))
	}
	policy, err := s.Memory.policy(memory.Value.Value())
	if err != nil {
		return one, err
	}
	memory.RequestPolicy = policy
	out.Capacity[device.CapacityMemory] = memory
	return out, nil
}

// unknownMemory is what to do about it.
func unknownMemory(one device.Device) string {
	if device.StringOf(one.Attributes[device.AttributeVendor]) == "nvidia" {
		return "set nvidia.enabled in the chart's values, and see that nvidia-smi works on the node"
	}
	return "leave sharing.memory out of the policy"
}

// closed returns a device of which claims have shares without any for further claims: each of these took one, and there is one.
func closed(one device.Device) device.Device {
	memory := one.Capacity[device.CapacityMemory].Value
	out, _ := shared(one, &Sharing{MaxClaims: 1}) // without memory nothing can be wrong
	if all, ok := out.Capacity[device.CapacityMemory]; ok {
		all.RequestPolicy = onlyAmount(memory.Value(), memory.Format)
		out.Capacity[device.CapacityMemory] = all
	}
	return out
}

// onlyAmount has each claim take the same.
func onlyAmount(n int64, format resource.Format) *resourceapi.CapacityRequestPolicy {
	amount := *resource.NewQuantity(n, format)
	return &resourceapi.CapacityRequestPolicy{Default: &amount, ValidValues: []resource.Quantity{amount}}
}

// policy returns the amounts of memory that claims may ask for on a device that has so much. Amounts that it does not have are left out.
func (m *SharedMemory) policy(has int64) (*resourceapi.CapacityRequestPolicy, error) {
	if m.Default > has {
		return nil, fmt.Errorf("a share has %s of memory and the device %s: lower sharing.memory.default, or select larger devices",
			bytesText(m.Default), bytesText(has))
	}
	out := &resourceapi.CapacityRequestPolicy{Default: quantity(m.Default)}
	switch {
	case len(m.Values) > 0:
		for _, v := range m.Values {
			if v <= has {
				out.ValidValues = append(out.ValidValues, *quantity(v))
			}
		}
	case m.Min == 0 || m.Step > has-m.Min: // one amount; the API wants room for a step
		out.ValidValues = []resource.Quantity{*quantity(m.Default)}
	default:
		out.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: quantity(m.Min)}
		if m.Max > 0 && m.Max <= has { // beyond what it has, the device's capacity is the end
			out.ValidRange.Max = quantity(m.Max)
		}
		if m.Step > 0 {
			out.ValidRange.Step = quantity(m.Step)
		}
	}
	return out, nil
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

func bytesText(n int64) string { return quantity(n).String() }

// shortList writes the first names of a list.
func shortList(names []string) string {
	const most = 3
	slices.Sort(names)
	text := fmt.Sprint(names[0])
	for _, name := range names[1:min(len(names), most)] {
		text += ", " + name
	}
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Divide decides what a physical device is published as. Where the API server keeps no counters, nothing is published that has the device
// together with something else; where it keeps no shares, one claim has a device.
func Divide(p Physical, s Settings, kept Kept) Division {
	d := &division{physical: p, settings: s, kept: kept, total: amounts{}, whole: true, vfio: s.Passthrough}
	d.counters = kept.Counters && (kept.Both || !d.needsShares())
	d.mig()
	d.amd()
	d.functions()
	d.passthrough()
	return d.finish()
}

// DivideInto divides a device for slices of a form. A card that no slice has room for would take the whole pool along, so it stays whole.
func DivideInto(form Form, p Physical, s Settings, kept Kept) Division {
	out := Divide(p, s, kept)
	if out.Card == nil {
		return out
	}
	if _, err := Slices([]device.Card{*out.Card}, out.Devices, form); err != nil {
		out = Divide(p, Settings{}, kept)
		out.Reasons = append(out.Reasons, Reason{Reason: ReasonNotDivisible, Message: err.Error()})
	}
	return out
}

// Replace returns devices with those that a whole one is published as in its place.
func Replace(devices []device.Device, whole device.Device, published []device.Device) []device.Device {
	devices = slices.DeleteFunc(devices, func(d device.Device) bool { return d.Kind == whole.Kind && d.Name == whole.Name })
	return append(devices, published...)
}

// division is one run of Divide.
type division struct {
	physical Physical
	settings Settings
	kept     Kept
	// counters says that parts consume counters.
	counters bool
	// total are the counters of the card. They are empty while nothing has to be shared.
	total amounts
	parts []part
	// whole and vfio say that the whole device is published, and that it is published for virtual machines.
	whole, vfio bool
	out         Division
}

// part is a part of the device, and what it takes of the card.
type part struct {
	Part
	device device.Device
	takes  amounts
}

// held says whether a claim has a device.
func (d *division) held(name string) bool { return d.physical.Held[name] }

// anyHeld says whether a claim has anything of the card.
func (d *division) anyHeld() bool {
	for _, held := range d.physical.Held {
		if held {
			return true
		}
	}
	return false
}

func (d *division) reason(reason string, devices int, format string, args ...any) {
	d.out.Reasons = append(d.out.Reasons, Reason{Reason: reason, Devices: devices, Message: fmt.Sprintf(format, args...)})
}

// withholdWhole keeps the whole device from being published, in both forms.
func (d *division) withholdWhole(reason, format string, args ...any) {
	devices := 0
	if d.whole && !d.held(d.physical.Device.Name) {
		devices++
	}
	if d.vfio && !d.held(VFIOName(d.physical.Device.Name)) {
		devices++
	}
	d.whole, d.vfio = false, false
	d.reason(reason, devices, format, args...)
}

// noCounters says that devices are not published because there are no counters for them.
func (d *division) noCounters(devices int, what string) {
	d.reason(ReasonNoCounters, devices, "%s needs counters: without them two claims could get the same part of the GPU, and %s", what,
		d.countersLack())
}

// countersLack says why there are no counters, and what to do next.
func (d *division) countersLack() string {
	if d.kept.Counters {
		return "schedulers before Kubernetes 1.37 do not heed them on a device that claims share: wait until these claims end, and leave " +
			"sharing out of the policy"
	}
	return "the API server drops them (DRAPartitionableDevices): enable the feature gate, on by default since Kubernetes 1.36"
}

// passthrough adds the whole device for virtual machines.
func (d *division) passthrough() {
	name := VFIOName(d.physical.Device.Name)
	switch {
	case d.held(name):
	case d.vfio && !d.physical.IOMMU:
		d.vfio = false
		d.reason(ReasonNoIOMMU, 1, "no IOMMU isolates the device in a group of its own: enable it in the firmware and the kernel "+
			"(intel_iommu=on), and see that nothing else of the group is in use")
	case d.vfio && !d.counters:
		d.vfio = false
		d.noCounters(1, "passthrough of a device that pods use too")
	}
	if !d.vfio && !d.held(name) {
		return
	}
	whole := d.physical.Device
	out := derived(whole, name, device.TypeVFIO)
	out.Attributes = maps.Clone(whole.Attributes)
	for _, name := range ofTheDriver() {
		delete(out.Attributes, name)
	}
	setText(out.Attributes, device.AttributeType, device.TypeVFIO)
	out.Capacity = maps.Clone(whole.Capacity)
	delete(out.Capacity, device.CapacityVirtualFunctions)
	d.parts = append(d.parts, part{Part: Part{Parent: whole.Name, Type: device.TypeVFIO}, device: out})
}

// ofTheDriver are the attributes that hold while the vendor's driver has the device.
func ofTheDriver() []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{
		device.AttributeDriver, device.AttributeDriverVersion, device.AttributeDriverVersionText, device.AttributeCUDADriverVersion,
		device.AttributeAddressingMode, device.AttributeFabricState, device.AttributeFabricClusterUUID, device.AttributeFabricClique,
	}
}

// finish puts the devices and their counters together. The whole device and its VFIO form take everything.
func (d *division) finish() Division {
	whole := d.physical.Device
	if !d.counters {
		d.separate()
	}
	d.whole = d.whole || d.held(whole.Name)
	shared := len(d.parts) > 0 && d.counters
	if shared && len(d.total) == 0 {
		d.total.take(counterDevice, 1)
	}
	if err := d.total.check(); shared && err != nil {
		d.reason(ReasonNotDivisible, len(d.parts), "%v", err)
		shared, d.parts = false, slices.DeleteFunc(d.parts, func(p part) bool { return !d.held(p.device.Name) })
	}
	d.orderParts()
	d.out.Parts = map[string]Part{}
	for _, p := range d.parts {
		if p.Type == device.TypeVFIO {
			p.takes = d.total
		}
		d.out.Parts[p.device.Name] = p.Part
		d.add(p.device, p.takes, shared)
	}
	if d.whole {
		d.add(whole, d.total, shared)
	}
	d.share(shared)
	if shared {
		d.out.Card = &device.Card{Name: whole.Name, Counters: d.total.counters()}
	}
	return d.out
}

// separate keeps the whole device and its parts from being published together where no counters keep them apart: a policy that changed, or
// one that is gone, leaves what claims have.
func (d *division) separate() {
	wholeHeld := d.held(d.physical.Device.Name)
	partHeld := slices.ContainsFunc(d.parts, func(p part) bool { return d.held(p.device.Name) })
	if partHeld && (d.whole || d.vfio) {
		d.withholdWhole(ReasonNoCounters, "claims have parts of the device, and nothing keeps these and the whole apart but counters; %s",
			d.countersLack())
	}
	free := func(p part) bool { return !d.held(p.device.Name) }
	if vfioHeld := d.held(VFIOName(d.physical.Device.Name)); wholeHeld || vfioHeld {
		before := len(d.parts)
		if d.parts = slices.DeleteFunc(d.parts, free); len(d.parts) < before {
			d.reason(ReasonNoCounters, before-len(d.parts), "a claim has the whole device, and nothing keeps it and its parts apart but "+
				"counters; %s", d.countersLack())
		}
	}
}

func (d *division) add(one device.Device, takes amounts, shared bool) {
	one.Card, one.Consumes = "", nil
	if shared {
		one.Card, one.Consumes = d.physical.Device.Name, takes.counters()
	}
	d.out.Devices = append(d.out.Devices, one)
}

// orderParts puts those first that keep the fewest others from being used. The scheduler takes the first that fits, so that small
// instances fill the places that no large one can have.
func (d *division) orderParts() {
	conflicts := map[string]int{}
	for i, p := range d.parts {
		for j, q := range d.parts {
			if i != j && p.Type == device.TypeMIG && q.Type == device.TypeMIG && p.Placement.Overlaps(q.Placement) {
				conflicts[p.device.Name]++
			}
		}
	}
	types := []string{device.TypeMIG, device.TypePartition, device.TypeVF, device.TypeVFIO}
	slices.SortFunc(d.parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(slices.Index(types, a.Type), slices.Index(types, b.Type)),
			cmp.Compare(conflicts[a.device.Name], conflicts[b.device.Name]), cmp.Compare(a.Index, b.Index),
			cmp.Compare(a.device.Name, b.device.Name))
	})
}

// inherited are the attributes of a part that are those of the whole device.
func inherited() []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{
		device.AttributeVendor, device.AttributeProductName, device.AttributeArchitecture, device.AttributeComputeCapability,
		device.AttributeBrand, device.AttributeDriver, device.AttributeDriverVersion, device.AttributeDriverVersionText,
		device.AttributeCUDADriverVersion, device.AttributeAddressingMode, device.AttributePCIDeviceID, device.AttributePCIAddress,
		standardPCIBusID, standardPCIeRoot, standardNUMANode,
	}
}

// derived starts the device for a part of a whole one.
func derived(whole device.Device, name, kind string) device.Device {
	out := device.Device{
		Kind: whole.Kind, Name: name, Parent: whole.Name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for _, attribute := range inherited() {
		if value, ok := whole.Attributes[attribute]; ok {
			out.Attributes[attribute] = value
		}
	}
	setText(out.Attributes, device.AttributeType, kind)
	if uuid, ok := whole.Attributes[device.AttributeUUID]; ok {
		out.Attributes[device.AttributeParentUUID] = uuid
	}
	return out
}

// setText sets an attribute. A text that the API would refuse is left out.
func setText(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, name resourceapi.QualifiedName, value string) {
	if attribute, err := device.String(value); err == nil {
		attributes[name] = attribute
	}
}

// Validate checks the devices and cards of a division as discovery checks what it finds: one that the API refuses would lose a whole slice.
func (d Division) Validate() error {
	var faults []error
	for _, one := range d.Devices {
		faults = append(faults, one.Validate())
	}
	return errors.Join(faults...)
}

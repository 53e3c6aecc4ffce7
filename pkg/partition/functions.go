// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// Functions are the virtual functions of a device (Documentation/ABI/testing/sysfs-bus-pci: sriov_totalvfs, sriov_numvfs, virtfnN).
type Functions struct {
	// Total is how many the device can have.
	Total int
	// Enabled are the addresses of those that exist, by their number.
	Enabled []pci.Address
	// Expected is how many there will be where none are made yet. Their addresses are not known.
	Expected int
}

// functions adds the virtual functions that a policy has made. One of them takes 1 of the counter, the physical function all, so that a
// claim for the physical function waits until no virtual one is held, and the other way round. Instances of MIG and virtual functions
// cannot keep each other out by counters, so that a device has one of the two.
func (d *division) functions() {
	f := d.physical.Functions
	want := d.wantedFunctions(f)
	if f == nil {
		return
	}
	functions := max(len(f.Enabled), f.Expected)
	ready := want != nil && functions == want.VirtualFunctions
	if want != nil && !ready {
		d.withholdWhole(ReasonFunctionsPending, "the device has %d virtual functions, not %d: the node changes that while no claim has the "+
			"device or one of them", functions, want.VirtualFunctions)
	}
	for i := range f.Total {
		if ready && i < functions || d.held(VFName(d.physical.Device.Name, i)) {
			d.function(i, f)
		}
	}
	if ready && functions > 0 && !d.counters {
		d.withholdWhole(ReasonNoCounters, "the device has virtual functions, and nothing keeps these and the whole apart but counters; %s",
			d.countersLack())
	}
}

// wantedFunctions are the settings, nil if there are none or the device cannot have them.
func (d *division) wantedFunctions(f *Functions) *SRIOV {
	want := d.settings.SRIOV
	switch {
	case want == nil:
	case d.settings.MIG != nil || d.settings.AMD != nil:
		d.reason(ReasonNotDivisible, 0, "a device is divided in one way: set mig, amd or sriov")
		want = nil
	case f == nil || f.Total == 0:
		d.reason(ReasonNotDivisible, 0, "the device has no virtual functions: SR-IOV is off in the firmware, or the driver does not offer it")
		want = nil
	case want.VirtualFunctions > f.Total:
		d.reason(ReasonNotDivisible, 0, "%d virtual functions: the device has at most %d", want.VirtualFunctions, f.Total)
		want = nil
	}
	return want
}

// function adds a virtual function. One that is gone while a claim has it keeps its place without an address.
func (d *division) function(index int, f *Functions) {
	whole := d.physical.Device
	out := derived(whole, VFName(whole.Name, index), device.TypeVF)
	delete(out.Attributes, device.AttributePCIAddress)
	delete(out.Attributes, device.AttributePCIDeviceID) // a function has an id of its own
	delete(out.Attributes, standardPCIBusID)
	if index < len(f.Enabled) {
		address := f.Enabled[index].String()
		setText(out.Attributes, device.AttributePCIAddress, address)
		setText(out.Attributes, standardPCIBusID, address)
	}
	d.total[counterFunctions] = int64(f.Total)
	d.parts = append(d.parts, part{
		Part:   Part{Parent: whole.Name, Type: device.TypeVF, Index: index},
		device: out, takes: amounts{counterFunctions: 1},
	})
}

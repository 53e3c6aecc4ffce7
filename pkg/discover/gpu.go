// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// vendor is one maker of GPUs, and how they are described.
type vendor struct {
	vendors.Vendor
	look
}

// look is how the GPUs of one vendor are described.
type look struct {
	// open reads what the vendor's GPUs have in common. It is called only if there are any, with those that one of its drivers
	// holds. The second result is for the driver as a whole; a nil probe withholds all of the vendor's GPUs.
	open func(context.Context, *sysfs.Tree, Options, []pci.Function) (probe, []Problem)
	// unlinked finds the GPUs that the vendor's library tells of and that none of its drivers holds, of all functions that are the vendor's.
	// It answers for them: the second result are their addresses. Nil: the vendor has none.
	unlinked func(context.Context, *sysfs.Tree, Options, []pci.Function) (Inventory, map[pci.Address]bool)
}

// probe describes one GPU: it adds to a draft that already has what PCI tells.
type probe func(*draft, pci.Function)

// looks has the file of each vendor with GPUs of the table in pkg/vendors, by its name.
func looks() map[string]look {
	return map[string]look{
		"amd":    {open: openAMD},
		"intel":  {open: openIntel},
		"nvidia": {open: openNVIDIA, unlinked: unlinkedNVIDIA},
	}
}

// gpuVendors are the vendors of GPUs.
type gpuVendors []vendor

// knownGPUs returns the vendors with GPUs of the table, each with its look.
func knownGPUs() gpuVendors {
	var out gpuVendors
	for _, row := range vendors.WithGPUs() {
		out = append(out, vendor{row, looks()[row.Name]})
	}
	return out
}

// gpus finds the GPUs of the vendors among the machine's functions, of which err says what could not be learned.
func (all gpuVendors) gpus(ctx context.Context, tree *sysfs.Tree, opts Options, functions []pci.Function, err error) Inventory {
	var found Inventory
	for _, v := range all {
		ours := slices.DeleteFunc(slices.Clone(functions), func(f pci.Function) bool { return !v.makes(f) })
		found.Problems = append(found.Problems, pciProblems(err, ours)...)
		found.add(v.gpus(ctx, tree, opts, ours))
	}
	found.Problems = append(found.Problems, pciProblems(err, nil)...)
	return found
}

// make reports whether f is a whole GPU of one of the vendors.
func (all gpuVendors) make(f pci.Function) bool {
	return slices.ContainsFunc(all, func(v vendor) bool { return v.makes(f) })
}

// makes reports whether f is a whole GPU of this vendor. Virtual functions are not devices yet: they come and go with the
// partitioning of their physical function, which will hand them out.
func (v vendor) makes(f pci.Function) bool {
	return f.Vendor == v.GPUs.ID && slices.Contains(v.GPUs.Classes, f.BaseClass()) && f.PhysicalFunction == nil
}

// gpus describes the GPUs among functions that all are this vendor's.
func (v vendor) gpus(ctx context.Context, tree *sysfs.Tree, opts Options, functions []pci.Function) Inventory {
	var found Inventory
	var unlinked map[pci.Address]bool
	if v.unlinked != nil {
		found, unlinked = v.unlinked(ctx, tree, opts, functions)
	}
	held := slices.DeleteFunc(slices.Clone(functions), func(f pci.Function) bool {
		problem, ok := v.held(f)
		if !ok && !unlinked[f.Address] {
			found.Problems = append(found.Problems, problem)
		}
		return !ok
	})
	if len(held) == 0 || ctx.Err() != nil {
		return found
	}
	describe, problems := v.open(ctx, tree, opts, held)
	found.Problems = append(found.Problems, problems...)
	if describe == nil {
		return found
	}
	for _, f := range held {
		if ctx.Err() != nil {
			return found
		}
		d := newGPU(tree, v.Name, f)
		describe(d, f)
		found.add(d.finish())
	}
	return found
}

// held checks that one of the vendor's drivers holds the function.
func (v vendor) held(f pci.Function) (Problem, bool) {
	if slices.Contains(v.GPUs.Drivers, f.Driver) {
		return Problem{}, true
	}
	want := strings.Join(v.GPUs.Drivers, " or ")
	return notHeld(f, fmt.Sprintf("%s GPU %04x:%04x", v.Name, f.Vendor, f.Device),
		"load "+want+", or see the kernel log for why it refused", want), false
}

// notHeld is the problem of a device that no driver holds, or another one than Fettle hands out. load says what to do in the first case,
// want names the driver that it should have.
func notHeld(f pci.Function, what, load, want string) Problem {
	problem := Problem{Subject: f.Address.String()}
	switch f.Driver {
	case "":
		problem.Reason = ReasonDriverNotLoaded
		problem.Message = fmt.Sprintf("no kernel driver holds the %s: %s", what, load)
	case "vfio-pci":
		problem.Reason = ReasonBoundToVFIO
		problem.Message = fmt.Sprintf("the %s is bound to vfio-pci, for virtual machines: bind it to %s to use it in pods", what, want)
	default:
		problem.Reason = ReasonDriverNotSupported
		problem.Message = fmt.Sprintf("the %s is bound to %s: bind it to %s to use it in pods", what, f.Driver, want)
	}
	return problem
}

// pciProblems picks from the faults of pci.List: with functions those that cost them a field, without functions those that cost
// the whole function and so may have hidden a GPU. What other devices of the machine lack is no business of ours.
func pciProblems(err error, functions []pci.Function) []Problem {
	ours := map[string]bool{}
	for _, f := range functions {
		ours[f.Address.String()] = true
	}
	var problems []Problem
	for _, fault := range faults(err) {
		one, ok := errors.AsType[*pci.Error](fault)
		switch {
		case !ok && functions == nil:
			problems = append(problems, Problem{
				Subject: sysfs.HostPath(sysfs.PCIDevices), Reason: ReasonListingFailed, Message: fault.Error(),
			})
		case ok && one.Essential && functions == nil:
			problems = append(problems, Problem{Subject: one.Address, Reason: ReasonIdentityUnreadable, Message: one.Err.Error()})
		case ok && !one.Essential && ours[one.Address]:
			problems = append(problems, Problem{Subject: one.Address, Reason: ReasonAttributeUnreadable, Message: one.Err.Error()})
		}
	}
	return problems
}

// faults takes apart what errors.Join put together.
func faults(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// Physical is a GPU, which may be divided into parts.
type Physical struct {
	// Device is the whole GPU. It is among the devices of the inventory too, unless Divided says why programs cannot use it whole now.
	Device  device.Device `json:"device"`
	Divided string        `json:"divided,omitempty"`
	Address pci.Address   `json:"address"`
	// Model is the PCI device id in the upper and the vendor id in the lower 16 bits, as NVIDIA's mig-parted writes it: 0x233010de.
	Model uint32 `json:"model"`
	// Subsystem is the same of the board.
	Subsystem uint32 `json:"subsystem,omitempty"`
	// MIG is what NVIDIA's library says. It is nil for a GPU that it cannot divide, and for those of other vendors.
	MIG *nvml.MIG `json:"mig,omitempty"`
	// MIGUnknown says that the library did not tell: MIG is nil, and the GPU may be divided.
	MIGUnknown bool `json:"migUnknown,omitempty"`
	// AMD are the partition modes of an AMD GPU, nil if it has none.
	AMD *partition.AMDModes `json:"amd,omitempty"`
	// VirtualFunctions is how many the GPU can have (sriov_totalvfs).
	VirtualFunctions int `json:"virtualFunctions,omitempty"`
}

// divide records that a GPU is divided, so that programs cannot use it whole.
func (d *draft) divide(err error) {
	d.note(ReasonPartitioned, err)
	d.physical.Divided = err.Error()
}

// wholes returns the devices of an inventory and those that are whole no more, which have names and numbers as well.
func (inv *Inventory) wholes() []device.Device {
	out := slices.Clone(inv.Devices)
	for i := range inv.Physical {
		if inv.Physical[i].Divided != "" {
			out = append(out, inv.Physical[i].Device)
		}
	}
	return out
}

// keep takes a valid device over from an inventory: as a device, or as a physical one that is divided.
func (inv *Inventory) keep(d device.Device, from []Physical) {
	i := slices.IndexFunc(from, func(p Physical) bool { return p.Device.Kind == d.Kind && p.Device.Name == d.Name })
	if i >= 0 {
		inv.Physical = append(inv.Physical, from[i])
	}
	if i < 0 || from[i].Divided == "" {
		inv.Devices = append(inv.Devices, d)
	}
}

func comparePhysical(a, b Physical) int { return cmp.Compare(a.Device.Name, b.Device.Name) }

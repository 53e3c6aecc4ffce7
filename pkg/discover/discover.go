// SPDX-License-Identifier: Apache-2.0

// Package discover finds the devices of a machine. It reads a host tree and asks NVIDIA's library through a function, and
// returns values: devices in full, and a problem for everything that could not be understood. One file a vendor; none of them
// writes.
package discover

import (
	"context"
	"path"
	"slices"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options are what discovery needs beside the host tree. The zero value finds PCI devices only, by what the kernel tells.
type Options struct {
	// NVML asks NVIDIA's management library. It is called at most once, and only where NVIDIA's driver holds a GPU. Nil, or an
	// error, leaves what the kernel tells.
	NVML func(context.Context) (nvml.Report, error)
	// HostDevices are the admin's directories and character devices.
	HostDevices []HostDevice
	// FPGARegions are what the admin knows of FPGAs that do not tell it themselves.
	FPGARegions []FPGARegion
	// Capacity measures the file system of a directory of the host, in bytes. Nil asks the host tree.
	Capacity func(path string) (int64, error)
}

// Inventory is what was found. The same machine gives the same inventory, byte by byte.
type Inventory struct {
	// Devices are in the order of their kinds and names, and each is valid.
	Devices []device.Device `json:"devices"`
	// Problems are in the order of their subjects, reasons and messages.
	Problems []Problem `json:"problems,omitempty"`
}

// Discover looks at the whole machine. It never fails: what is wrong with one device is a problem of that device. When ctx ends
// it returns what it has and a problem that says so.
func Discover(ctx context.Context, tree *sysfs.Tree, opts Options) Inventory {
	functions, err := pci.List(tree)
	found := gpus(ctx, tree, opts, functions, err)
	fpgas, engines := dflFPGAs(ctx, tree, functions, err)
	found.add(fpgas)
	managed, nodes := fpgaManagers(ctx, tree, opts)
	found.add(managed)
	engines = append(engines, nodes...)
	cards, nodes := xrtCards(ctx, tree, opts, functions, err)
	found.add(cards)
	engines = append(engines, nodes...)
	found.add(hostDevices(ctx, tree, opts))
	if err := ctx.Err(); err != nil {
		found.Problems = append(found.Problems, Problem{
			Subject: sysfs.HostPath(""), Reason: ReasonCancelled, Message: "discovery ended early, devices may be missing: " + err.Error(),
		})
	}
	found.withoutEngines(engines)
	return found.checked()
}

func (inv *Inventory) add(more Inventory) {
	inv.Devices = append(inv.Devices, more.Devices...)
	inv.Problems = append(inv.Problems, more.Problems...)
}

// checked sorts the inventory and keeps the devices that can be published: one bad device in a slice would lose the whole slice.
func (inv *Inventory) checked() Inventory {
	names := map[string]int{}
	numbers := map[[2]int64]int{}
	for _, d := range inv.Devices {
		names[d.Name]++
		for _, node := range ownNodes(d) {
			numbers[[2]int64{node.Major, node.Minor}]++
		}
	}
	out := Inventory{Devices: []device.Device{}, Problems: slices.Clone(inv.Problems)}
	for _, d := range inv.Devices {
		err := d.Validate()
		switch {
		case err != nil:
			out.Problems = append(out.Problems, Problem{Subject: subjectOf(d), Reason: ReasonInvalid, Message: err.Error()})
		case names[d.Name] > 1:
			// None of them is kept: whichever came first would take over the name when the other goes.
			out.Problems = append(out.Problems, Problem{
				Subject: subjectOf(d), Reason: ReasonDuplicateName,
				Message: "another device is named " + d.Name + " too: give the host devices different names in the configuration",
			})
		case slices.ContainsFunc(ownNodes(d), func(n container.Node) bool { return numbers[[2]int64{n.Major, n.Minor}] > 1 }):
			// The numbers of at least one are wrong, and a claim would get another claim's device.
			out.Problems = append(out.Problems, Problem{
				Subject: subjectOf(d), Reason: ReasonDuplicateNumbers,
				Message: "another device has the same device numbers as " + d.Name + ": see what the kernel says of both",
			})
		default:
			out.Devices = append(out.Devices, d)
		}
	}
	slices.SortFunc(out.Devices, device.Compare)
	slices.SortFunc(out.Problems, Problem.compare)
	out.Problems = slices.Compact(out.Problems)
	return out
}

// ownNodes are the nodes that belong to this device alone.
func ownNodes(d device.Device) []container.Node {
	shared := []string{"kfd", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"}
	return slices.DeleteFunc(slices.Clone(d.Edits.Nodes), func(n container.Node) bool {
		return slices.Contains(shared, path.Base(n.Path))
	})
}

// subjectOf is the PCI address or the host path of a device.
func subjectOf(d device.Device) string {
	if address := d.Attributes[device.AttributePCIAddress].StringValue; address != nil {
		return *address
	}
	for _, mount := range d.Edits.Mounts {
		return mount.HostPath
	}
	for _, node := range d.Edits.Nodes {
		return node.Path
	}
	return d.Name
}

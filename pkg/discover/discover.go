// SPDX-License-Identifier: Apache-2.0

// Package discover finds the devices of a machine. It reads a host tree and asks NVIDIA's library through a function, and
// returns values: devices in full, and a problem for everything that could not be understood. One file a vendor; none of them
// writes.
package discover

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Options are what discovery needs beside the host tree. The zero value finds PCI devices only, by what the kernel tells.
type Options struct {
	// NVML asks NVIDIA's management library. It is called at most once, and only where NVIDIA's driver holds a GPU or has device nodes. Nil
	// leaves what the kernel tells. An error leaves that too, and no GPU is whole that may be in MIG mode.
	NVML func(context.Context) (nvml.Report, error)
	// Whole are the NVIDIA GPUs that are not in MIG mode, by an earlier answer of the library: see nvml.Report.Whole.
	Whole map[pci.Address]bool
	// PublishUnlinked publishes the NVIDIA GPUs that the library tells of although no link below /sys says that NVIDIA's driver holds them.
	PublishUnlinked bool
	// RenderNodes gives whole NVIDIA GPUs their render node, beside the nodes by which programs compute.
	RenderNodes bool
	// HostDevices are the admin's directories and character devices.
	HostDevices []HostDevice
	// FPGARegions are what the admin knows of FPGAs that do not tell it themselves.
	FPGARegions []FPGARegion
	// Locked reads what a driver may show late, and so hold up the look at all other devices. Nil reads it like everything else.
	Locked *sysfs.Reads
	// Capacity measures the file system of a directory of the host, in bytes. Nil asks the host tree.
	Capacity func(path string) (int64, error)
}

// Inventory is what was found. The same machine gives the same inventory, byte by byte.
type Inventory struct {
	// Devices are in the order of their kinds and names, and each is valid.
	Devices []device.Device `json:"devices"`
	// Physical are the GPUs that can be divided, or are, by name.
	Physical []Physical `json:"physical,omitempty"`
	// Problems are in the order of their subjects, reasons and messages.
	Problems []Problem `json:"problems,omitempty"`
}

// Discover looks at the whole machine. It never fails: what is wrong with one device is a problem of that device. When ctx ends
// it returns what it has and a problem that says so.
func Discover(ctx context.Context, tree *sysfs.Tree, opts Options) Inventory {
	if ask := opts.NVML; ask != nil {
		once := sync.OnceValues(func() (nvml.Report, error) { return ask(ctx) })
		opts.NVML = func(context.Context) (nvml.Report, error) { return once() }
	}
	functions, err := pci.List(tree)
	makers := knownGPUs()
	found := makers.gpus(ctx, tree, opts, functions, err)
	fpgas, engines := dflFPGAs(ctx, tree, functions, err)
	found.add(fpgas)
	managed, nodes := fpgaManagers(ctx, tree, opts)
	found.add(managed)
	engines = append(engines, nodes...)
	cards, nodes := xrtCards(ctx, tree, opts, functions, err)
	found.add(cards)
	engines = append(engines, nodes...)
	found.add(accelerators(ctx, tree, functions, err, found.takenBy(makers)))
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
	inv.Physical = append(inv.Physical, more.Physical...)
	inv.Problems = append(inv.Problems, more.Problems...)
}

// checked sorts the inventory and keeps the devices that can be published: one bad device in a slice would lose the whole slice.
func (inv *Inventory) checked() Inventory {
	names := map[string]int{}
	numbers := map[[2]int64]int{}
	for _, d := range inv.wholes() {
		names[d.Name]++
		for _, node := range ownNodes(d) {
			numbers[[2]int64{node.Major, node.Minor}]++
		}
	}
	out := Inventory{Devices: []device.Device{}, Problems: slices.Clone(inv.Problems)}
	for _, d := range inv.wholes() {
		same := inv.sameDirectory(d)
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
		case same != "":
			// None of them is kept here either: a claim's end empties its directory.
			out.Problems = append(out.Problems, Problem{
				Subject: subjectOf(d), Reason: ReasonSameDirectory,
				Message: "device " + same + " has this directory, too, or one inside or around it: two claims would share what only one may have; " +
					"let one glob of the configuration match it",
			})
		default:
			out.keep(d, inv.Physical)
		}
	}
	slices.SortFunc(out.Physical, comparePhysical)
	slices.SortFunc(out.Devices, device.Compare)
	slices.SortFunc(out.Problems, Problem.compare)
	out.Problems = slices.Compact(out.Problems)
	return out
}

// sameDirectory names another device that has a directory of a device, or one inside or around it. Empty: there is none.
func (inv *Inventory) sameDirectory(d device.Device) string {
	if d.Kind != device.KindHost {
		return ""
	}
	for _, other := range inv.Devices {
		if other.Kind == d.Kind && other.Name != d.Name && device.SharesDirectory(d.Edits, other.Edits, d.Place, other.Place) {
			return other.Name
		}
	}
	return ""
}

// ownNodes are the nodes that belong to this device alone.
func ownNodes(d device.Device) []container.Node {
	return slices.DeleteFunc(slices.Clone(d.Edits.Nodes), container.Node.Common)
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

// Problem is something about the machine that a person should know: a device that is not published, or one that lacks something.
type Problem struct {
	// Subject is a PCI address or the absolute path of a host file.
	Subject string `json:"subject"`
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Message says what is wrong and, where it helps, what to do next.
	Message string `json:"message"`
}

// The reasons of problems. Those in the first group withhold the device; the others cost it no more than the message says.
const (
	// ReasonDriverNotLoaded: no kernel driver holds the device, or a part of the driver is missing.
	ReasonDriverNotLoaded = "DriverNotLoaded"
	// ReasonDriverNotSupported: a driver holds the device that Fettle does not hand out.
	ReasonDriverNotSupported = "DriverNotSupported"
	// ReasonBoundToVFIO: the device is set aside for virtual machines.
	ReasonBoundToVFIO = "BoundToVFIO"
	// ReasonExcluded: the driver was told to leave the device alone.
	ReasonExcluded = "Excluded"
	// ReasonPartitioned: the device is in a partition mode, so that it cannot be used whole.
	ReasonPartitioned = "Partitioned"
	// ReasonNotResponding: the driver holds the device and cannot reach it.
	ReasonNotResponding = "NotResponding"
	// ReasonNoDriverLink: NVIDIA's library tells of the GPU, and the kernel does not say that NVIDIA's driver holds it.
	ReasonNoDriverLink = "NoDriverLink"
	// ReasonNotPermitted: the driver does not let the plugin ask about the device.
	ReasonNotPermitted = "NotPermitted"
	// ReasonIdentityUnreadable: what the device is cannot be read.
	ReasonIdentityUnreadable = "IdentityUnreadable"
	// ReasonDeviceNumbersUnknown: the numbers of a node that the device needs cannot be read.
	ReasonDeviceNumbersUnknown = "DeviceNumbersUnknown"
	// ReasonInterfaceUnknown: the interface id of an FPGA's region is absent, means none, or cannot be read.
	ReasonInterfaceUnknown = "InterfaceUnknown"
	// ReasonRegionAmbiguous: an FPGA's port has one of several regions, and which one cannot be told.
	ReasonRegionAmbiguous = "RegionAmbiguous"
	// ReasonRegionUnknown: a programming of the region failed or was cut off, so nobody knows what it holds.
	ReasonRegionUnknown = "RegionUnknown"
	// ReasonManagerMissing: what programs an FPGA's port is not there.
	ReasonManagerMissing = "ManagerMissing"
	// ReasonNotProgrammable: the kernel lets no program load anything into an FPGA.
	ReasonNotProgrammable = "NotProgrammable"
	// ReasonProgrammingUnlocked: whoever had an FPGA's node could program it.
	ReasonProgrammingUnlocked = "ProgrammingUnlocked"
	// ReasonPortReleased: an FPGA's port was given to a virtual function that nothing on the host holds.
	ReasonPortReleased = "PortReleased"
	// ReasonProgrammingNode: the device's node could program an FPGA.
	ReasonProgrammingNode = "ProgrammingNode"
	// ReasonNodesMissing: nothing tells by which nodes pods use an FPGA.
	ReasonNodesMissing = "NodesMissing"
	// ReasonHostPathUnusable: a configured host path is not what it was said to be.
	ReasonHostPathUnusable = "HostPathUnusable"
	// ReasonDuplicateName: two devices would have the same name.
	ReasonDuplicateName = "DuplicateName"
	// ReasonDuplicateNumbers: two devices would be the same device node.
	ReasonDuplicateNumbers = "DuplicateNumbers"
	// ReasonSameDirectory: two devices of the configuration have one directory, or one has a directory inside the other's.
	ReasonSameDirectory = "SameDirectory"
	// ReasonInvalid: what was found breaks a rule of the API.
	ReasonInvalid = "Invalid"

	// ReasonAttributeUnreadable: an attribute could not be read and is left out.
	ReasonAttributeUnreadable = "AttributeUnreadable"
	// ReasonAttributeInvalid: an attribute was read, cannot be published as it is, and is left out.
	ReasonAttributeInvalid = "AttributeInvalid"
	// ReasonAcceleratorDead: an FPGA's port has no accelerator that answers.
	ReasonAcceleratorDead = "AcceleratorDead"
	// ReasonNodeMismatch: a node in the host's /dev contradicts the kernel's numbers, which are used.
	ReasonNodeMismatch = "NodeMismatch"
	// ReasonNVMLUnavailable: NVIDIA's library did not answer, so that only the kernel's attributes are known, and no MIG mode.
	ReasonNVMLUnavailable = "NVMLUnavailable"
	// ReasonListingFailed: a directory could not be listed, so that devices may be missing.
	ReasonListingFailed = "ListingFailed"
	// ReasonCancelled: discovery ended early, so that devices are missing.
	ReasonCancelled = "Cancelled"
)

// OfDriver says whether a problem of some reason means that a driver is missing or does not work. A device that is set aside for virtual
// machines, or that its driver excludes, is as somebody wants it.
func OfDriver(reason string) bool {
	return slices.Contains([]string{ReasonDriverNotLoaded, ReasonDriverNotSupported, ReasonNVMLUnavailable, ReasonNodeMismatch}, reason)
}

func (p Problem) compare(q Problem) int {
	return cmp.Or(cmp.Compare(p.Subject, q.Subject), cmp.Compare(p.Reason, q.Reason), cmp.Compare(p.Message, q.Message))
}

// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// accelFiles are the files in the directory of an accelerator's device that tell what it is. The kernel has no common ones.
type accelFiles struct {
	product, firmware, serial, status string
}

// accelDrivers has the files of drivers whose files are known. Accelerators of other drivers are published with what PCI tells.
func accelDrivers() map[string]accelFiles {
	return map[string]accelFiles{
		"amdxdna": {product: "vbnv", firmware: "fw_version"}, // drivers/accel/amdxdna/amdxdna_sysfs.c
		// Documentation/ABI/testing/sysfs-driver-habanalabs
		"habanalabs": {product: "device_type", firmware: "cpucp_ver", status: "status"},
		"qaic":       {serial: "mhi0/serial_number"}, // drivers/bus/mhi/host/init.c
	}
}

const (
	// accelPrefix begins the names of the class's devices (drivers/gpu/drm/drm_drv.c). Others in the class, such as the control devices that
	// Habana Labs' own driver adds, are for tools of the administrator.
	accelPrefix = "accel"
	// serialLabel is before the number in MHI's file.
	serialLabel = "Serial Number:"
)

// accelMinor is one device of the kernel's class of accelerators.
type accelMinor struct {
	name string
	// parent is the last PCI function in its path, nil if there is none. Platform is its platform device then.
	parent   *pci.Address
	platform string
}

// accelerators finds the devices of the kernel's class of accelerators (drivers/accel/drm_accel.c): one a PCI function or platform device,
// whatever driver registered it. A function of which taken says that it is a device of another kind is none: a claim for either would hold
// both. The kernel lets no driver register an accelerator that also has nodes for graphics (DRIVER_COMPUTE_ACCEL in include/drm/drm_drv.h),
// so the nodes of the class are all. Listing is the error of pci.List.
func accelerators(
	ctx context.Context, tree *sysfs.Tree, functions []pci.Function, listing error, taken func(pci.Function) bool,
) Inventory {
	minors, found := accelMinors(tree)
	var ours []pci.Function
	for _, f := range functions {
		if ctx.Err() != nil {
			return found
		}
		own := slices.DeleteFunc(slices.Clone(minors), func(m accelMinor) bool { return m.parent == nil || *m.parent != f.Address })
		row, known := vendors.AcceleratorOf(f.Vendor, f.Device)
		if len(own) == 0 && !known || taken(f) {
			continue
		}
		ours = append(ours, f)
		found.add(describeAccelerator(tree, f, own, row))
	}
	if len(ours) > 0 { // with none pciProblems tells of those that may have hidden one, as it did for GPUs
		found.Problems = append(found.Problems, pciProblems(listing, ours)...)
	}
	for _, m := range minors {
		if m.parent == nil {
			found.add(describePlatform(tree, m))
		}
	}
	return found
}

// accelMinors lists the class. A link that leads nowhere is of a device that is being removed.
func accelMinors(tree *sysfs.Tree) ([]accelMinor, Inventory) {
	var found Inventory
	names, err := tree.ReadDir(sysfs.ClassAccel)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		found.Problems = append(found.Problems, driverProblem(sysfs.ClassAccel, ReasonListingFailed, err))
	}
	var minors []accelMinor
	for _, name := range names {
		link := path.Join(sysfs.ClassAccel, name)
		if !isNumbered(name, accelPrefix) || !tree.Exists(link) {
			continue
		}
		target, err := tree.ReadLink(link)
		if err != nil {
			found.Problems = append(found.Problems, driverProblem(link, ReasonIdentityUnreadable, err))
			continue
		}
		m := accelMinor{name: name, parent: lastFunction(target)}
		if m.parent == nil {
			m.platform, err = tree.LinkBase(path.Join(link, "device"))
		}
		if err != nil {
			found.Problems = append(found.Problems, driverProblem(link, ReasonIdentityUnreadable, err))
			continue
		}
		minors = append(minors, m)
	}
	return minors, found
}

// lastFunction returns the PCI function that a device's path leads through last. Devices of the auxiliary bus and others may follow.
func lastFunction(target string) *pci.Address {
	elements := strings.Split(target, "/")
	slices.Reverse(elements)
	for _, element := range elements {
		if address, err := pci.Parse(element); err == nil {
			return &address
		}
	}
	return nil
}

// describeAccelerator describes the accelerator of a PCI function. Row is its row in the table of vendors, empty for one that is not there.
func describeAccelerator(tree *sysfs.Tree, f pci.Function, minors []accelMinor, row vendors.Accelerators) Inventory {
	vendor := vendors.NameOf(f.Vendor)
	d := newPCI(tree, device.KindAccelerator, vendor, f, vendor+"-"+f.Address.Label())
	d.text(device.AttributePCIVendorID, fmt.Sprintf("%04x", f.Vendor))
	d.text(device.AttributePCIDeviceID, fmt.Sprintf("%04x", f.Device))
	what := fmt.Sprintf("%s accelerator %04x:%04x", vendor, f.Vendor, f.Device)
	switch {
	case f.PhysicalFunction != nil:
		if len(minors) == 0 {
			return Inventory{}
		}
		d.withhold(ReasonPartitioned,
			fmt.Errorf("the %s is a virtual function of %s: only whole accelerators are given to pods", what, *f.PhysicalFunction))
	case len(minors) == 0 && row.Driver != f.Driver:
		return Inventory{Problems: []Problem{notHeld(f, what, "load "+row.Driver+", or see the kernel log for why it refused", row.Driver)}}
	case len(minors) == 0:
		d.withhold(ReasonNotResponding, fmt.Errorf("%s holds the %s and has not registered it in %s: it may be starting, see the kernel log",
			f.Driver, what, sysfs.HostPath(sysfs.ClassAccel)))
	default:
		driver := f.Driver
		if _, known := accelDrivers()[driver]; !known && row.Driver != "" {
			driver = row.Driver // has registered it even if the link to it cannot be read, and may say that it gave the device up
		}
		d.accelNodes(f.Dir(), driver, minors)
	}
	return d.finish()
}

// describePlatform describes an accelerator that is part of the machine, such as those of rocket and ethosu. It is named after its platform
// device, whose name is the device tree's.
func describePlatform(tree *sysfs.Tree, m accelMinor) Inventory {
	link := path.Join(sysfs.ClassAccel, m.name)
	dir := path.Join(link, "device")
	d := newDraft(tree, sysfs.HostPath(link), device.KindAccelerator, platformName(vendors.Platform, m.platform))
	d.text(device.AttributeType, string(device.KindAccelerator))
	d.text(device.AttributeVendor, vendors.Platform)
	driver, err := tree.LinkBase(path.Join(dir, "driver"))
	d.noteUnreadable(err)
	d.text(device.AttributeDriver, driver)
	d.accelNodes(dir, driver, []accelMinor{m})
	return d.finish()
}

// accelNodes adds the nodes and what the driver tells in the device's directory.
func (d *draft) accelNodes(dir, driver string, minors []accelMinor) {
	for _, m := range minors {
		node, err := accelNode(d.tree, m.name)
		if err != nil {
			d.withhold(ReasonDeviceNumbersUnknown, err)
			return
		}
		d.node(node)
	}
	d.driverVersion(driver)
	files := accelDrivers()[driver]
	if status := d.accelText(dir, files.status); files.status != "" && !isServing(status) {
		d.withhold(ReasonNotResponding,
			fmt.Errorf("%s says that the accelerator's status is %q: see the kernel log, and reset it or reboot the node", driver, status))
		return
	}
	d.text(device.AttributeProductName, d.accelText(dir, files.product))
	d.text(device.AttributeFirmwareVersion, device.VersionText(d.accelText(dir, files.firmware)))
	serial := strings.TrimSpace(strings.TrimPrefix(d.accelText(dir, files.serial), serialLabel))
	if strings.Trim(serial, "0") != "" { // zero before the firmware has started
		d.text(device.AttributeSerial, serial)
	}
}

// accelText reads one of the driver's files. It is empty where the driver has none.
func (d *draft) accelText(dir, name string) string {
	if name == "" {
		return ""
	}
	return d.read(path.Join(dir, name))
}

// accelNode is the node of one device of the class.
func accelNode(tree *sysfs.Tree, name string) (container.Node, error) {
	major, minor, err := tree.ReadDev(path.Join(sysfs.ClassAccel, name, "dev"))
	if err != nil {
		return container.Node{}, err
	}
	return newNode(path.Join("accel", name), major, minor), nil
}

// isServing reports whether a driver says that it serves the device, or resets it, as it does after each program
// (drivers/accel/habanalabs/common/habanalabs_drv.c, create_hdev). Another word, and one that cannot be read, is no.
func isServing(status string) bool {
	return slices.Contains([]string{"operational", "in reset", "in reset after device release"}, strings.ToLower(status))
}

// takenBy returns the PCI functions that belong to devices of other kinds: those of the inventory, and all that are GPUs, which may be held
// back.
func (inv *Inventory) takenBy(gpus gpuVendors) func(pci.Function) bool {
	addresses := map[string]bool{}
	for _, d := range inv.wholes() {
		for _, name := range []resourceapi.QualifiedName{device.AttributePCIAddress, device.AttributeCard} {
			addresses[device.StringOf(d.Attributes[name])] = true
		}
	}
	return func(f pci.Function) bool { return gpus.make(f) || addresses[f.Address.String()] }
}

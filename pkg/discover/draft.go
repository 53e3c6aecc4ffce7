// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// workload is what a container may do with its device nodes.
const workload = "rw"

// draft is a device being described, and what went wrong on the way. A vendor's code only adds to it: what is essential and
// missing withholds the device, everything else costs one attribute.
type draft struct {
	tree     *sysfs.Tree
	subject  string
	device   device.Device
	problems []Problem
	withheld bool
	// physical is set for a GPU.
	physical *Physical
}

func newDraft(tree *sysfs.Tree, subject string, kind device.Kind, name string) *draft {
	return &draft{tree: tree, subject: subject, device: device.Device{
		Kind: kind, Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}}
}

// newGPU starts the description of a GPU.
func newGPU(tree *sysfs.Tree, vendor string, f pci.Function) *draft {
	d := newPCI(tree, device.KindGPU, vendor, f, vendor+"-"+f.Address.Label())
	d.text(device.AttributePCIDeviceID, fmt.Sprintf("%04x", f.Device))
	d.physical = &Physical{
		Address: f.Address, Model: uint32(f.Device)<<16 | uint32(f.Vendor),
		Subsystem: uint32(f.SubsystemDevice)<<16 | uint32(f.SubsystemVendor),
	}
	d.count(device.CapacityVirtualFunctions, uint64(f.VFs))
	d.physical.VirtualFunctions = f.VFs
	return d
}

// newCard starts the description of an FPGA on a card.
func newCard(tree *sysfs.Tree, vendor string, f pci.Function, name string) *draft {
	d := newPCI(tree, device.KindFPGA, vendor, f, name)
	d.text(device.AttributePCIVendorID, fmt.Sprintf("%04x", f.Vendor))
	d.text(device.AttributePCIDeviceID, fmt.Sprintf("%04x", f.Device))
	d.device.Attributes[device.AttributeSRIOVVF] = device.Bool(f.PhysicalFunction != nil)
	return d
}

// newPCI starts the description of a device with what PCI tells of every function.
func newPCI(tree *sysfs.Tree, kind device.Kind, vendor string, f pci.Function, name string) *draft {
	address := f.Address.String()
	d := newDraft(tree, address, kind, name)
	d.text(device.AttributeType, string(kind))
	d.text(device.AttributeVendor, vendor)
	d.text(device.AttributeDriver, f.Driver)
	d.text(device.AttributePCIAddress, address)
	d.text(deviceattribute.StandardDeviceAttributePCIBusID, address)
	d.text(deviceattribute.StandardDeviceAttributePCIeRoot, f.Root)
	if f.NUMANode != nil {
		d.device.Attributes[deviceattribute.StandardDeviceAttributeNUMANode] = device.Int(int64(*f.NUMANode))
	}
	return d
}

// finish gives what was found.
func (d *draft) finish() Inventory {
	if d.withheld {
		return Inventory{Problems: d.problems}
	}
	slices.SortFunc(d.device.Edits.Nodes, func(a, b container.Node) int { return cmp.Compare(a.Path, b.Path) })
	found := Inventory{Problems: d.problems}
	if d.physical != nil {
		d.physical.Device = d.device
		found.Physical = []Physical{*d.physical}
	}
	if d.physical == nil || d.physical.Divided == "" {
		found.Devices = []device.Device{d.device}
	}
	return found
}

// note records a problem that does not keep the device from being used.
func (d *draft) note(reason string, err error) {
	d.problems = append(d.problems, Problem{Subject: d.subject, Reason: reason, Message: err.Error()})
}

// withhold records a problem that does.
func (d *draft) withhold(reason string, err error) {
	d.note(reason, err)
	d.withheld = true
}

// text sets a text attribute; an empty value leaves it out.
func (d *draft) text(name resourceapi.QualifiedName, value string) {
	if value == "" {
		return
	}
	d.set(name, func() (resourceapi.DeviceAttribute, error) { return device.String(value) })
}

// version sets a version attribute; an empty value leaves it out.
func (d *draft) version(name resourceapi.QualifiedName, raw string) {
	if raw == "" {
		return
	}
	d.set(name, func() (resourceapi.DeviceAttribute, error) { return device.Version(raw) })
}

func (d *draft) set(name resourceapi.QualifiedName, value func() (resourceapi.DeviceAttribute, error)) {
	attribute, err := value()
	if err != nil {
		d.note(ReasonAttributeInvalid, fmt.Errorf("attribute %s is left out: %w", name, err))
		return
	}
	d.device.Attributes[name] = attribute
}

// bytes sets a capacity in bytes; 0 leaves it out.
func (d *draft) bytes(name resourceapi.QualifiedName, n uint64) {
	d.capacity(name, n, device.Bytes)
}

// count sets a capacity of whole things; 0 leaves it out.
func (d *draft) count(name resourceapi.QualifiedName, n uint64) {
	d.capacity(name, n, device.Count)
}

func (d *draft) capacity(name resourceapi.QualifiedName, n uint64, make func(int64) resourceapi.DeviceCapacity) {
	switch {
	case n == 0:
	case n > math.MaxInt64:
		d.note(ReasonAttributeInvalid, fmt.Errorf("capacity %s is left out: %d is too large", name, n))
	default:
		d.device.Capacity[name] = make(int64(n))
	}
}

// read reads a text file of the device; empty if it is absent or, with a note, unreadable.
func (d *draft) read(name string) string {
	value, err := d.tree.ReadString(name)
	d.noteUnreadable(err)
	return value
}

// readBytes reads a file with a number of bytes; 0 if it is absent or, with a note, unreadable.
func (d *draft) readBytes(name string) uint64 {
	value, err := d.tree.ReadInt(name)
	if err == nil && value < 0 {
		err = fmt.Errorf("read %s: %w: %d is negative", sysfs.HostPath(name), sysfs.ErrMalformed, value)
	}
	d.noteUnreadable(err)
	if err != nil {
		return 0
	}
	return uint64(value)
}

// driverVersion sets the version of the device's kernel module.
func (d *draft) driverVersion(module string) {
	version, err := moduleVersion(d.tree, module)
	d.noteUnreadable(err)
	d.setDriverVersion(version)
}

// setDriverVersion sets the version of the driver, and its text where the version does not tell all of it; an empty text leaves both out.
func (d *draft) setDriverVersion(raw string) {
	d.version(device.AttributeDriverVersion, raw)
	if version := d.device.Attributes[device.AttributeDriverVersion].VersionValue; version == nil || device.HidesText(*version) {
		d.text(device.AttributeDriverVersionText, device.VersionText(raw))
	}
}

// noteUnreadable notes an error that is not plain absence.
func (d *draft) noteUnreadable(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.note(ReasonAttributeUnreadable, err)
	}
}

// node adds a device node for a workload, and notes when the host's own node contradicts its numbers.
func (d *draft) node(n container.Node) {
	d.device.Edits.Nodes = append(d.device.Edits.Nodes, n)
	if err := checkNode(d.tree, n); err != nil {
		d.note(ReasonNodeMismatch, err)
	}
}

// newNode is the node of the host's /dev with these numbers.
func newNode(name string, major, minor int64) container.Node {
	return container.Node{Path: sysfs.HostPath(path.Join(sysfs.Dev, name)), Major: major, Minor: minor, Permissions: workload}
}

// checkNode compares a node with the host's own, which need not exist: the container's is made from the numbers.
func checkNode(tree *sysfs.Tree, n container.Node) error {
	major, minor, err := tree.Rdev(strings.TrimPrefix(n.Path, "/"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the kernel says %d:%d: %w", n.Major, n.Minor, err)
	case major != n.Major || minor != n.Minor:
		return fmt.Errorf("%s is %d:%d on the host, the kernel says %d:%d: remove the stale node",
			n.Path, major, minor, n.Major, n.Minor)
	}
	return nil
}

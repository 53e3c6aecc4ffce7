// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Function is one PCI function, from its directory in sysfs (Documentation/ABI/testing/sysfs-bus-pci).
type Function struct {
	Address Address
	// Vendor and Device are the identifiers in the files vendor and device.
	Vendor, Device uint16
	// SubsystemVendor and SubsystemDevice name the board; 0 if unreadable.
	SubsystemVendor, SubsystemDevice uint16
	// Class is base class, subclass and programming interface: 0x030200.
	Class uint32
	// Revision is the file revision.
	Revision uint8
	// Driver is the name of the bound kernel driver; empty if there is none.
	Driver string
	// NUMANode is the file numa_node; nil where the firmware does not say (-1).
	NUMANode *int
	// Root is the root complex above the function: "pci0000:3a". Empty if the function's link does not tell.
	Root string
	// VFs is how many virtual functions there can be (sriov_totalvfs); 0 for functions without SR-IOV. How many there are is not read here:
	// the kernel tells that only once no driver has the function locked, and one that hangs would hold up the look at the whole machine.
	VFs int
	// PhysicalFunction is the address of the function that this one is a virtual function of (link physfn).
	PhysicalFunction *Address
}

// BaseClass is the class without the programming interface: 0x0302.
func (f Function) BaseClass() uint16 { return uint16(f.Class >> 8) }

// Dir is the function's directory in the host tree.
func (f Function) Dir() string { return sysfs.PCIDevice(f.Address.String()) }

// Error is what could not be learned about one function.
type Error struct {
	// Address is the name of the function's directory. It is text, for it may be what is wrong.
	Address string
	// Essential says that the function is missing from the list because of it. Otherwise the field is left empty.
	Essential bool
	Err       error
}

func (e *Error) Error() string { return fmt.Sprintf("PCI function %s: %v", e.Address, e.Err) }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// List reads every function of the machine, in the order of addresses. What it could read it returns, even with an error; the
// error joins one *Error for each thing that it could not. A machine without PCI has no functions.
func List(tree *sysfs.Tree) ([]Function, error) {
	names, err := tree.ReadDir(sysfs.PCIDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var functions []Function
	var faults []error
	for _, name := range names {
		function, ok, errs := read(tree, name)
		faults = append(faults, errs...)
		if ok {
			functions = append(functions, function)
		}
	}
	slices.SortFunc(functions, func(a, b Function) int { return a.Address.Compare(b.Address) })
	return functions, errors.Join(faults...)
}

// read reads one function. It is not ok if its address, vendor, device or class is unknown, or whether it is a
// virtual function.
func read(tree *sysfs.Tree, name string) (f Function, ok bool, faults []error) {
	address, err := Parse(name)
	if err != nil {
		return Function{}, false, []error{&Error{Address: name, Essential: true, Err: err}}
	}
	r := reader{tree: tree, name: name, dir: sysfs.PCIDevice(name)}
	if !tree.Exists(r.dir) {
		return Function{}, false, []error{&Error{
			Address: name, Essential: true,
			Err: fmt.Errorf("link %s leads nowhere: %w", sysfs.HostPath(r.dir), fs.ErrNotExist),
		}}
	}
	f = Function{
		Address: address,
		Vendor:  uint16(r.essential("vendor", 4)),
		Device:  uint16(r.essential("device", 4)),
		Class:   uint32(r.essential("class", 6)),
	}
	if r.lost {
		return Function{}, false, r.faults
	}
	f.SubsystemVendor = uint16(r.optional("subsystem_vendor", 4))
	f.SubsystemDevice = uint16(r.optional("subsystem_device", 4))
	f.Revision = uint8(r.optional("revision", 2))
	f.Driver = r.link("driver", false)
	f.NUMANode = r.numaNode()
	f.Root = r.root()
	f.VFs, _ = r.count("sriov_totalvfs", 0)
	f.PhysicalFunction = r.physicalFunction()
	return f, !r.lost, r.faults
}

// reader reads the files of one function and collects what goes wrong.
type reader struct {
	tree      *sysfs.Tree
	name, dir string
	faults    []error
	// lost is set by the first essential fault.
	lost bool
}

func (r *reader) fault(essential bool, err error) {
	r.lost = r.lost || essential
	r.faults = append(r.faults, &Error{Address: r.name, Essential: essential, Err: err})
}

// essential reads a hexadecimal number that must be there.
func (r *reader) essential(file string, digits int) uint64 {
	value, err := r.hex(file, digits)
	if err != nil {
		r.fault(true, err)
	}
	return value
}

// optional reads a hexadecimal number that may be absent, but not garbage.
func (r *reader) optional(file string, digits int) uint64 {
	value, err := r.hex(file, digits)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fault(false, err)
	}
	return value
}

// hex reads a number of the width that the kernel writes (drivers/pci/pci-sysfs.c, pci_config_attr and class_show).
func (r *reader) hex(file string, digits int) (uint64, error) {
	return r.tree.ReadFixedHex(path.Join(r.dir, file), digits)
}

// count reads a decimal number from low up; absent and not ok if it is not there or not readable.
func (r *reader) count(file string, low int64) (value int, ok bool) {
	v, err := r.tree.ReadInt(path.Join(r.dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false
	}
	if err == nil && (v < low || v > 1<<16) {
		err = fmt.Errorf("read %s: %w: %d, want %d to %d",
			sysfs.HostPath(path.Join(r.dir, file)), sysfs.ErrMalformed, v, low, 1<<16)
	}
	if err != nil {
		r.fault(false, err)
		return 0, false
	}
	return int(v), true
}

func (r *reader) link(file string, essential bool) string {
	base, err := r.tree.LinkBase(path.Join(r.dir, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fault(essential, err)
	}
	return base
}

func (r *reader) numaNode() *int {
	node, ok := r.count("numa_node", -1)
	if !ok || node < 0 {
		return nil
	}
	return &node
}

// physicalFunction is essential: a virtual function that does not look like one would be taken for a whole device.
func (r *reader) physicalFunction() *Address {
	base := r.link("physfn", true)
	if base == "" {
		return nil
	}
	address, err := Parse(base)
	if err != nil {
		r.fault(true, fmt.Errorf("link physfn: %w", err))
		return nil
	}
	return &address
}

// root finds the root complex in where the function's link points: ../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0. It is
// not resolved further, for the name is all that is wanted.
func (r *reader) root() string {
	target, err := r.tree.ReadLink(r.dir)
	if err != nil {
		r.fault(false, err)
		return ""
	}
	root, ok := rootOf(target)
	if !ok {
		r.fault(false, fmt.Errorf("link %s: %w: %q names no root complex such as pci0000:3a",
			sysfs.HostPath(r.dir), sysfs.ErrMalformed, target))
	}
	return root
}

// rootOf finds the first element of a path that names a root complex. It need not be the first of all: below platform and ACPI
// devices the root complex comes later, and behind a volume management device a second one follows.
func rootOf(target string) (string, bool) {
	for element := range strings.SplitSeq(target, "/") {
		if rootName.MatchString(element) {
			return element, true
		}
	}
	return "", false
}

// rootName is how the kernel names root buses: pci%04x:%02x (drivers/pci/probe.c, pci_register_host_bridge).
var rootName = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

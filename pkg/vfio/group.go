// SPDX-License-Identifier: Apache-2.0

package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Group is an IOMMU group: the devices that can only be given away together
// (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
type Group struct {
	sysfs.IOMMUGroup
	// Members are the PCI functions in the group, sorted.
	Members []Member
	// Others are the names of devices on other buses.
	Others []string
}

// Member is one PCI function of a group.
type Member struct {
	Address pci.Address
	// Driver is the bound driver, empty if there is none.
	Driver string
	// Bridge says that the function is a PCI-to-PCI bridge, which VFIO ignores.
	Bridge bool
	// VFs is how many virtual functions are enabled.
	VFs int
	// PhysicalFunction is the function that a virtual function belongs to.
	PhysicalFunction *pci.Address
}

// notIsolated is the name of the groups that VFIO makes of functions which no IOMMU isolates, if its module is told to
// (drivers/vfio/group.c, enable_unsafe_noiommu_mode).
const notIsolated = "vfio-noiommu"

// ReadGroup reads the IOMMU group of a PCI function. A function without one is fs.ErrNotExist: the machine has no IOMMU, the kernel does
// not use it, or the group is one that isolates nothing.
func ReadGroup(tree *sysfs.Tree, address pci.Address) (Group, error) {
	number, err := tree.ReadIOMMUGroup(sysfs.PCIDevice(address.String()))
	if err != nil {
		return Group{}, err
	}
	name, err := tree.ReadString(path.Join(sysfs.IOMMUGroups, fmt.Sprint(number.Number), "name"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Group{}, err
	}
	if name == notIsolated {
		return Group{}, fmt.Errorf("IOMMU group %d isolates nothing: %w", number.Number, fs.ErrNotExist)
	}
	g := Group{IOMMUGroup: number}
	names, err := tree.ReadDir(path.Join(sysfs.IOMMUGroups, fmt.Sprint(number.Number), "devices"))
	if err != nil {
		return Group{}, err
	}
	for _, name := range names {
		member, err := pci.Parse(name)
		if err != nil {
			g.Others = append(g.Others, name)
			continue
		}
		m, err := readMember(tree, member)
		if err != nil {
			return Group{}, err
		}
		g.Members = append(g.Members, m)
	}
	slices.SortFunc(g.Members, func(a, b Member) int { return a.Address.Compare(b.Address) })
	if !slices.ContainsFunc(g.Members, func(m Member) bool { return m.Address == address }) {
		return Group{}, fmt.Errorf("IOMMU group %d does not list %s, which links to it: look again", g.Number, address)
	}
	return g, nil
}

// bridges are the classes of PCI-to-PCI bridges (PCI Code and ID Assignment Specification, base class 06).
func isBridge(class uint64) bool { return class>>8 == 0x0604 || class>>8 == 0x0609 }

// readMember reads nothing that the kernel shows only under the lock of the device (sriov_numvfs_show, driver_override_show): a driver that
// does not let go of a function has it, and the node's other functions are looked at meanwhile.
func readMember(tree *sysfs.Tree, address pci.Address) (Member, error) {
	m := Member{Address: address}
	dir := sysfs.PCIDevice(address.String())
	class, err := tree.ReadFixedHex(path.Join(dir, "class"), 6)
	if err != nil {
		return m, err
	}
	m.Bridge = isBridge(class)
	if m.Driver, err = driverOf(tree, address); err != nil {
		return m, err
	}
	for tree.Exists(path.Join(dir, "virtfn"+strconv.Itoa(m.VFs))) {
		m.VFs++
	}
	physical, err := tree.LinkBase(path.Join(dir, "physfn"))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	of, err := pci.Parse(physical)
	m.PhysicalFunction = &of
	return m, err
}

// driverOf is the driver that holds a function, empty if none does.
func driverOf(tree *sysfs.Tree, address pci.Address) (string, error) {
	name, err := tree.LinkBase(path.Join(sysfs.PCIDevice(address.String()), "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return name, err
}

// IsVFIODriver reports whether a driver gives functions to virtual machines: vfio-pci, or a variant of it for some devices, of which the
// names end alike (nvgrace-gpu-vfio-pci, xe-vfio-pci, mlx5_vfio_pci).
func IsVFIODriver(name string) bool {
	return strings.HasSuffix(strings.ReplaceAll(name, "_", "-"), "vfio-pci")
}

// Ours returns the members that go to a claim with a function: it and its siblings, such as the audio function of a GPU. A virtual function
// goes alone.
func (g *Group) Ours(address pci.Address) []Member {
	var virtual bool
	for _, m := range g.Members {
		virtual = virtual || m.Address == address && m.PhysicalFunction != nil
	}
	var ours []Member
	for _, m := range g.Members {
		sibling := !virtual && m.PhysicalFunction == nil && !m.Bridge && sameSlot(m.Address, address)
		if m.Address == address || sibling {
			ours = append(ours, m)
		}
	}
	return ours
}

func sameSlot(a, b pci.Address) bool {
	a.Function, b.Function = 0, 0
	return a == b
}

// Obstacles says why a function cannot be given to a virtual machine, sorted. Without any, its group is viable once the functions of Ours
// are bound to VFIO (Documentation/driver-api/vfio.rst). Bridges do not count. An unbound function of another device is no obstacle. One
// that is bound to VFIO is, since the user of the group would get it along.
func (g *Group) Obstacles(address pci.Address) []string {
	ours := g.Ours(address)
	var found []string
	for _, name := range g.Others {
		found = append(found, fmt.Sprintf("%s, which is no PCI function, is in IOMMU group %d too", name, g.Number))
	}
	for _, m := range g.Members {
		own := slices.ContainsFunc(ours, func(o Member) bool { return o.Address == m.Address })
		switch {
		case m.Bridge:
		case own && m.VFs > 0:
			found = append(found, fmt.Sprintf("%s has %d virtual functions", m.Address, m.VFs))
		case own || m.Driver == "" || m.Driver == "pci-stub":
		case IsVFIODriver(m.Driver):
			found = append(found, fmt.Sprintf("%s in IOMMU group %d would be given along, since it is bound to %s", m.Address, g.Number, m.Driver))
		default:
			found = append(found, fmt.Sprintf("%s in IOMMU group %d is bound to %s", m.Address, g.Number, m.Driver))
		}
	}
	slices.Sort(found)
	return found
}

// Candidate is a function that an IOMMU isolates.
type Candidate struct {
	Address pci.Address
	// Group is the number of the IOMMU group, Type the type of its default domain.
	Group uint64
	Type  string
	// Functions go to a claim together, with this one.
	Functions []pci.Address
	// Obstacles say why the function cannot be given to a virtual machine now; empty if it can.
	Obstacles []string
}

// Candidates returns the functions of which the kernel has an IOMMU group, in their order. Functions without one are left out. The error
// joins what could not be read, which leaves the function out as well.
func Candidates(tree *sysfs.Tree, functions []pci.Function) ([]Candidate, error) {
	var found []Candidate
	var faults []error
	for _, f := range functions {
		g, err := ReadGroup(tree, f.Address)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			faults = append(faults, &pci.Error{Address: f.Address.String(), Err: err})
			continue
		}
		c := Candidate{Address: f.Address, Group: g.Number, Type: g.Type, Obstacles: g.Obstacles(f.Address)}
		for _, m := range g.Ours(f.Address) {
			c.Functions = append(c.Functions, m.Address)
		}
		found = append(found, c)
	}
	return found, errors.Join(faults...)
}

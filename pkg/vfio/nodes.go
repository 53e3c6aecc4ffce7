// SPDX-License-Identifier: Apache-2.0

package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Interface is a way in which a virtual machine monitor uses a function.
type Interface string

// The interfaces.
const (
	// InterfaceGroup is /dev/vfio/vfio with the node of the IOMMU group, which every monitor knows.
	InterfaceGroup Interface = "Group"
	// InterfaceIOMMUFD is /dev/iommu with the node of the function (Linux 6.6).
	InterfaceIOMMUFD Interface = "IOMMUFD"
)

const workload = "rw"

// Nodes returns the nodes that a container needs for a function, sorted by path. The function must be bound to a VFIO driver: the kernel
// chooses the numbers only then. Errors that are fs.ErrNotExist say that the kernel does not have this interface.
func Nodes(tree *sysfs.Tree, address pci.Address, by Interface) ([]container.Node, error) {
	var nodes []container.Node
	var err error
	switch by {
	case InterfaceGroup:
		nodes, err = groupNodes(tree, address)
	case InterfaceIOMMUFD:
		nodes, err = fdNodes(tree, address)
	default:
		return nil, fmt.Errorf("VFIO interface %q: want %s or %s", by, InterfaceGroup, InterfaceIOMMUFD)
	}
	if err != nil {
		return nil, fmt.Errorf("VFIO interface %s of %s: %w", by, address, err)
	}
	return nodes, nil
}

func groupNodes(tree *sysfs.Tree, address pci.Address) ([]container.Node, error) {
	g, err := tree.ReadIOMMUGroup(sysfs.PCIDevice(address.String()))
	if err != nil {
		return nil, err
	}
	number := fmt.Sprint(g.Number)
	group, err := node(tree, path.Join("vfio", number), path.Join(sysfs.ClassVFIO, number))
	if err != nil {
		return nil, err
	}
	control, err := node(tree, "vfio/vfio", path.Join(sysfs.ClassMisc, "vfio"))
	return []container.Node{group, control}, err
}

func fdNodes(tree *sysfs.Tree, address pci.Address) ([]container.Node, error) {
	dir := path.Join(sysfs.PCIDevice(address.String()), "vfio-dev")
	names, err := tree.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "vfio") })
	if i < 0 {
		return nil, fmt.Errorf("list %s: no vfioN: %w", sysfs.HostPath(dir), fs.ErrNotExist)
	}
	function, err := node(tree, path.Join("vfio/devices", names[i]), path.Join(dir, names[i]))
	if err != nil {
		return nil, err
	}
	control, err := node(tree, "iommu", path.Join(sysfs.ClassMisc, "iommu"))
	return []container.Node{control, function}, err
}

// node is a node below /dev with the numbers that a directory of sysfs tells.
func node(tree *sysfs.Tree, name, dir string) (container.Node, error) {
	major, minor, err := tree.ReadDev(path.Join(dir, "dev"))
	return container.Node{Path: sysfs.HostPath(path.Join(sysfs.Dev, name)), Major: major, Minor: minor, Permissions: workload}, err
}

// numbers are the nodes by which a user holds a group or a function of it.
func numbers(tree *sysfs.Tree, address pci.Address) ([]sysfs.Number, error) {
	var found []sysfs.Number
	for _, read := range []func(*sysfs.Tree, pci.Address) ([]container.Node, error){groupNodes, fdNodes} {
		nodes, err := read(tree, address)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, n := range nodes {
			if n.Major != 0 && !slices.Contains(sharedNodes(), n.Path) {
				found = append(found, sysfs.Number{Major: n.Major, Minor: n.Minor})
			}
		}
	}
	return found, nil
}

// sharedNodes are open for functions of others too.
func sharedNodes() []string { return []string{"/dev/vfio/vfio", "/dev/iommu"} }

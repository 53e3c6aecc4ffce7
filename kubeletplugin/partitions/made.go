// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// Made returns what a container needs of a part, or of a GPU whose node may be another after a step.
func (f *Feature) Made(name string) (container.Edits, error) {
	d := f.decided.Load()
	if d == nil {
		return container.Edits{}, errNotDecided
	}
	if c := d.cards[name]; c != nil {
		return f.madeWhole(c)
	}
	part, ok := d.parts[name]
	c := d.cards[part.Parent]
	if !ok || c == nil {
		return container.Edits{}, fmt.Errorf("device %s is no part of a GPU of this node: %w", name, fs.ErrNotExist)
	}
	switch part.Type {
	case device.TypeMIG:
		return f.madeInstance(c, name, &part)
	case device.TypePartition:
		return madePartition(f.tree, c, &part)
	case device.TypeVF:
		return madeFunction(f.tree, c, &part)
	}
	nodes, err := vfioNodes(f.tree, c.Address)
	return container.Edits{Nodes: nodes}, err
}

// madeWhole returns the own nodes of an NVIDIA GPU as the kernel numbers them now. It has a render node if discovery gave it one.
func (f *Feature) madeWhole(c *card) (container.Edits, error) {
	node, err := discover.NVIDIANode(f.tree, c.Address)
	if err != nil {
		return container.Edits{}, err
	}
	edits := container.Edits{Nodes: []container.Node{node}}
	if !slices.ContainsFunc(c.Device.Edits.Nodes, func(n container.Node) bool { return strings.HasPrefix(n.Path, "/dev/dri/") }) {
		return edits, nil
	}
	render, err := discover.RenderNode(f.tree, c.Address)
	if err != nil {
		return container.Edits{}, fmt.Errorf("find the render node of %s: %w", c.Address, err)
	}
	edits.Nodes = append(edits.Nodes, render)
	return edits, nil
}

// madeInstance looks an instance up. One that fits a layout, or a former one, and that somebody else made is used as it is.
func (f *Feature) madeInstance(c *card, name string, part *partition.Part) (container.Edits, error) {
	edits, err := f.mig.Edits(name)
	instance := c.standing(name, part)
	if instance == nil || !errors.Is(err, fs.ErrNotExist) {
		return edits, err
	}
	node, err := discover.NVIDIANode(f.tree, c.Address)
	if err != nil {
		return container.Edits{}, err
	}
	return f.mig.EditsOf(c.place(name, part.Profile, part.ProfileID, part.Placement), int(node.Minor), *instance)
}

// standing returns the instance of a part that outlives its claims, nil for another part.
func (c *card) standing(name string, part *partition.Part) *nvml.MIGInstance {
	if part.Instance != nil || c.MIG == nil || !c.stands(name, part) {
		return part.Instance
	}
	at := slices.IndexFunc(c.MIG.Instances, func(one nvml.MIGInstance) bool {
		return one.ProfileID == part.ProfileID && one.Placement == part.Placement
	})
	if at < 0 {
		return nil
	}
	return &c.MIG.Instances[at]
}

// madePartition looks up the nodes of a partition of an AMD GPU.
func madePartition(tree *sysfs.Tree, c *card, part *partition.Part) (container.Edits, error) {
	found, err := discover.AMDPartitions(tree, pci.Function{Address: c.Address})
	if err != nil {
		return container.Edits{}, err
	}
	if part.Index >= len(found) {
		return container.Edits{}, fmt.Errorf("GPU %s has %d partitions, and number %d is wanted: retried", c.Address, len(found), part.Index)
	}
	return container.Edits{Nodes: found[part.Index].Nodes}, nil
}

// madeFunction looks up the nodes of a virtual function.
func madeFunction(tree *sysfs.Tree, c *card, part *partition.Part) (container.Edits, error) {
	enabled, err := sriov.VirtualFunctions(tree, c.Address)
	if err != nil {
		return container.Edits{}, err
	}
	if part.Index >= len(enabled) {
		return container.Edits{}, fmt.Errorf("GPU %s has %d virtual functions, and number %d is wanted: somebody removed it",
			c.Address, len(enabled), part.Index)
	}
	nodes, err := discover.GraphicsNodes(tree, enabled[part.Index])
	return container.Edits{Nodes: nodes}, err
}

// vfioNodes returns the nodes of all interfaces that the kernel offers: the virtual machine's monitor takes the one that it knows.
func vfioNodes(tree *sysfs.Tree, address pci.Address) ([]container.Node, error) {
	var nodes []container.Node
	var missing error
	for _, by := range []vfio.Interface{vfio.InterfaceGroup, vfio.InterfaceIOMMUFD} {
		found, err := vfio.Nodes(tree, address, by)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = errors.Join(missing, err)
		case err != nil:
			return nil, err
		}
		nodes = append(nodes, found...)
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("PCI function %s is bound to no VFIO driver: %w", address, missing)
	}
	return nodes, nil
}

// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// AMDPartition is a part of an AMD GPU that computes on its own.
type AMDPartition struct {
	// Index counts from 0 on each GPU. It is 0 for a GPU that is not divided.
	Index int
	// Render is the name of the partition's render node: "renderD129". Nodes are that node and /dev/kfd.
	Render string
	Nodes  []container.Node
	// GPUID is how the compute driver names the partition (gpu_id).
	GPUID uint64
	// Memory is in bytes, 0 if the driver does not say; ComputeUnits are those of the partition.
	Memory, ComputeUnits uint64
	// Architecture is such as "gfx942".
	Architecture string
}

// ErrPartitionsDiffer says that the compute driver shows another number of partitions than the GPU's mode has.
var ErrPartitionsDiffer = errors.New("the topology does not fit the mode")

// AMDPartitions lists the partitions of a GPU in the order of their numbers, as the topology of the compute driver has them now. The render
// node of partition 0 is the GPU's own; the others belong to platform devices (drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c), which are
// there whether a partition uses them or not. So the topology alone tells which ones count, by drm_render_minor.
//
// It fails with ErrPartitionsDiffer if the number of partitions is not that of the mode: during a switch, or if the kernel made fewer nodes
// than the mode needs. Half of a GPU must not be taken for all of it.
func AMDPartitions(tree *sysfs.Tree, f pci.Function) ([]AMDPartition, error) {
	major, minor, err := tree.ReadDev(path.Join(sysfs.ClassKFD, "dev"))
	if err != nil {
		return nil, err
	}
	kfd := newNode("kfd", major, minor)
	topology, problems := readKFDTopology(tree)
	for _, p := range problems {
		return nil, errors.New(p.Message) // Any node of it may be a partition of this GPU.
	}
	var found []AMDPartition
	for _, node := range topology {
		index, ok := partitionAt(node.properties, f.Address)
		if !ok {
			continue
		}
		p, err := amdPartition(tree, node, kfd)
		if err != nil {
			return nil, fmt.Errorf("partition %d of %s: %w", index, f.Address, err)
		}
		p.Index = index
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b AMDPartition) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Nodes[1].Minor, b.Nodes[1].Minor))
	})
	return found, checkPartitions(tree, f, found)
}

// partitionAt reports whether a node of the topology is at a function, and returns the number of the partition. location_id has the
// address, and of a divided GPU the number as well: in the bits of the PCI function on older kernels, in the top four bits on newer ones
// (kfd_topology_add_device in drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
func partitionAt(properties map[string]uint64, address pci.Address) (index int, ok bool) {
	const functionBits = 7
	location := properties["location_id"]
	whole := uint64(address.LocationID())
	if properties["domain"] != uint64(address.Domain) || location&0xffff&^functionBits != whole&^functionBits {
		return 0, false
	}
	if top := location >> 28 & 0xf; top != 0 {
		return int(top), true
	}
	return int(location&functionBits) - int(whole&functionBits), location&functionBits >= whole&functionBits
}

func amdPartition(tree *sysfs.Tree, node kfdNode, kfd container.Node) (AMDPartition, error) {
	p := node.properties
	render := drmRender + strconv.FormatUint(p["drm_render_minor"], 10)
	major, minor, err := tree.ReadDev(path.Join(sysfs.ClassDRM, render, "dev"))
	if err != nil {
		return AMDPartition{}, err
	}
	return AMDPartition{
		Render: render, Nodes: []container.Node{kfd, newNode(path.Join("dri", render), major, minor)}, GPUID: node.gpuID,
		Memory: node.memory, ComputeUnits: computeUnits(p), Architecture: gfxName(p["gfx_target_version"]),
	}, nil
}

// checkPartitions compares the partitions with the GPU's mode. CPX has as many as the GPU has compute dies, at least two.
func checkPartitions(tree *sysfs.Tree, f pci.Function, found []AMDPartition) error {
	mode, err := tree.ReadString(path.Join(f.Dir(), "current_compute_partition"))
	if errors.Is(err, fs.ErrNotExist) {
		mode, err = "SPX", nil // It cannot be divided.
	}
	if err != nil {
		return err
	}
	fits := false
	switch mode {
	case "SPX", "DPX", "TPX", "QPX":
		fits = len(found) == map[string]int{"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}[mode]
	case "CPX":
		fits = len(found) > 1
	}
	for i, p := range found {
		fits = fits && p.Index == i
	}
	if fits {
		return nil
	}
	return fmt.Errorf("GPU %s is in compute partition mode %q and has %d partitions: %w: wait for the switch, or see the kernel's log",
		f.Address, mode, len(found), ErrPartitionsDiffer)
}

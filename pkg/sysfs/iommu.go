// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"path"
	"strconv"
)

// IOMMUGroup is a group of devices that an IOMMU cannot tell apart (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
type IOMMUGroup struct {
	Number uint64
	// Type is the type of the group's default domain, which the kernel's drivers use: "DMA", "DMA-FQ", "identity" or "blocked".
	Type string
}

// Translates reports whether the IOMMU lets the group's devices reach only memory that a driver mapped for them. The types are those of
// iommu_group_show_type in drivers/iommu/iommu.c. A type that a later kernel adds does not count.
func (g IOMMUGroup) Translates() bool { return g.Type == "DMA" || g.Type == "DMA-FQ" }

// ReadIOMMUGroup reads the IOMMU group of the device with this directory. A device without a group is fs.ErrNotExist: the machine has no
// IOMMU, or the kernel does not use it.
func (t *Tree) ReadIOMMUGroup(device string) (IOMMUGroup, error) {
	link := path.Join(device, "iommu_group")
	name, err := t.LinkBase(link)
	if err != nil {
		return IOMMUGroup{}, err
	}
	number, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return IOMMUGroup{}, fmt.Errorf("read link %s: %w: %q, want the number of a group", HostPath(link), ErrMalformed, name)
	}
	kind, err := t.ReadString(path.Join(IOMMUGroups, name, "type"))
	if err != nil {
		return IOMMUGroup{}, err
	}
	return IOMMUGroup{Number: number, Type: kind}, nil
}

// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"path"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// openIntel has nothing to read: Intel's GPUs share no node.
func openIntel(context.Context, *sysfs.Tree, Options, []pci.Function) (probe, []Problem) {
	return describeIntel, nil
}

// describeIntel adds what i915 and xe tell. Neither has an identity or a firmware version in sysfs, so there is no uuid.
func describeIntel(d *draft, f pci.Function) {
	if _, ok := d.renderNode(f); !ok {
		return
	}
	card, hasCard := d.cardNode(f)
	d.driverVersion(f.Driver)
	model := intelModel(f.Device)
	d.text(device.AttributeProductName, model.product)
	d.text(device.AttributeArchitecture, model.architecture)
	var local uint64
	if hasCard { // i915, in the drivers for data-centre GPUs.
		local = d.readBytes(path.Join(card.dir, "lmem_total_bytes"))
	}
	if local == 0 {
		local = d.tileMemory(f)
	}
	d.bytes(device.CapacityMemory, local)
}

// tileMemory adds up the memory of xe's tiles: tile<N>/physical_vram_size_bytes. If one cannot be read the sum would be wrong,
// and is left out.
func (d *draft) tileMemory(f pci.Function) uint64 {
	files, err := d.tree.Glob(path.Join(f.Dir(), "tile[0-9]*", "physical_vram_size_bytes"))
	if err != nil {
		d.note(ReasonAttributeUnreadable, err)
		return 0
	}
	var sum uint64
	for _, file := range files {
		n := d.readBytes(file)
		if n == 0 {
			return 0
		}
		sum += n
	}
	return sum
}

// intelGPU is what the device identifier tells.
type intelGPU struct {
	first, last           uint16
	product, architecture string
}

// intelModel finds the row of the table; the zero value for a GPU that is not in it. Drivers do not tell the name, so the table
// follows include/drm/intel/pciids.h and https://pci-ids.ucw.cz for the GPUs that servers have.
func intelModel(id uint16) intelGPU {
	const (
		hpc  = "xe-hpc"
		hpg  = "xe-hpg"
		hpg2 = "xe2-hpg"
	)
	for _, row := range []intelGPU{
		{0x0bd5, 0x0bd6, "Intel Data Center GPU Max 1550", hpc},
		{0x0bd7, 0x0bd8, "Intel Data Center GPU Max 1350", hpc},
		{0x0bd9, 0x0bdb, "Intel Data Center GPU Max 1100", hpc},
		{0x0bd0, 0x0be5, "", hpc},
		{0x56c0, 0x56c0, "Intel Data Center GPU Flex 170", hpg},
		{0x56c1, 0x56c1, "Intel Data Center GPU Flex 140", hpg},
		{0x56a0, 0x56a0, "Intel Arc A770", hpg},
		{0x56a1, 0x56a1, "Intel Arc A750", hpg},
		{0x56a2, 0x56a2, "Intel Arc A580", hpg},
		{0x56a5, 0x56a5, "Intel Arc A380", hpg},
		{0x56a6, 0x56a6, "Intel Arc A310", hpg},
		{0x5690, 0x56bf, "", hpg},
		{0xe20b, 0xe20b, "Intel Arc B580", hpg2},
		{0xe20c, 0xe20c, "Intel Arc B570", hpg2},
		{0xe211, 0xe211, "Intel Arc Pro B60", hpg2},
		{0xe212, 0xe212, "Intel Arc Pro B50", hpg2},
		{0xe202, 0xe223, "", hpg2},
	} {
		if row.first <= id && id <= row.last {
			return row
		}
	}
	return intelGPU{}
}

// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// ErrNotIsolated says that logic in a region can read and write all memory of the machine.
var ErrNotIsolated = errors.New("lets its logic read and write all memory of the machine")

// CheckDMA fails with ErrNotIsolated unless an IOMMU translates every access of the region's logic to the machine's memory.
func (r *Region) CheckDMA(tree *sysfs.Tree) error {
	if r.Requester == "" {
		return fmt.Errorf("the region %w as far as the kernel tells: it is a part of the machine, whose logic belongs to no device with an "+
			"IOMMU group", ErrNotIsolated)
	}
	group, err := tree.ReadIOMMUGroup(r.Requester)
	name := path.Base(r.Requester)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the region %w: device %s has no IOMMU group, so no IOMMU translates its DMA", ErrNotIsolated, name)
	case err != nil:
		return fmt.Errorf("the region %w unless its IOMMU group says otherwise: %w", ErrNotIsolated, err)
	case !group.Translates():
		return fmt.Errorf("the region %w: IOMMU group %d of device %s has type %q, want DMA or DMA-FQ",
			ErrNotIsolated, group.Number, name, group.Type)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// LookAt returns what a machine shows of a GPU by which it is divided: its virtual functions, and whether a virtual machine could have it
// if the settings want that. Instances of others and what claims have are not looked at.
func LookAt(tree *sysfs.Tree, gpu *discover.Physical, s partition.Settings) (p partition.Physical, errs []error) {
	p = partition.Physical{
		Device: gpu.Device, MIG: gpu.MIG, MIGUnknown: gpu.MIGUnknown, Divided: gpu.Divided != "", AMD: gpu.AMD,
	}
	if gpu.VirtualFunctions > 0 {
		enabled, err := sriov.VirtualFunctions(tree, gpu.Address)
		if err != nil {
			errs = append(errs, err)
		}
		p.Functions = &partition.Functions{Total: gpu.VirtualFunctions, Enabled: enabled}
	}
	if s.Passthrough {
		candidates, err := vfio.Candidates(tree, []pci.Function{{Address: gpu.Address}})
		if err != nil {
			errs = append(errs, err)
		}
		p.IOMMU = len(candidates) == 1 && len(candidates[0].Obstacles) == 0
	}
	return p, errs
}

// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"slices"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
)

// Found is an instance that somebody else made.
type Found struct {
	PCIAddress pci.Address
	// Parent is the UUID of the GPU.
	Parent   string
	Instance nvml.MIGInstance
}

// Overlaps reports whether the instance takes slices of a partition.
func (f Found) Overlaps(w *Partition) bool {
	return f.PCIAddress == w.PCIAddress && f.Instance.Placement.Overlaps(w.placement())
}

// Foreign lists the instances of a report that no file owns, by address and start. They are never destroyed. Devices that they overlap
// cannot be given away, as long as they are there.
func Foreign(report nvml.Report, held []Held) []Found {
	var out []Found
	for _, gpu := range report.Devices {
		address, err := pci.ParseBusID(gpu.PCIBusID)
		if err != nil || gpu.MIG == nil {
			continue
		}
		for _, one := range gpu.MIG.Instances {
			owned := slices.ContainsFunc(held, func(h Held) bool {
				return h.PCIAddress == address && h.Parent == gpu.UUID && h.covers(one)
			})
			if !owned {
				out = append(out, Found{PCIAddress: address, Parent: gpu.UUID, Instance: one})
			}
		}
	}
	slices.SortFunc(out, func(a, b Found) int {
		return cmp.Or(a.PCIAddress.Compare(b.PCIAddress), cmp.Compare(a.Instance.Placement.Start, b.Instance.Placement.Start))
	})
	return out
}

// ForeignPlaces lists the places of instances on one GPU that no file owns.
func ForeignPlaces(address pci.Address, uuid string, m *nvml.MIG, held []Held) []nvml.MIGPlacement {
	report := nvml.Report{Devices: []nvml.Device{{PCIBusID: address.String(), UUID: uuid, MIG: m}}}
	var places []nvml.MIGPlacement
	for _, one := range Foreign(report, held) {
		places = append(places, one.Instance.Placement)
	}
	return places
}

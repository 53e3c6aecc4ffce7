// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// Holdings says what claims hold of GPUs.
type Holdings struct {
	node    string
	records *record.Store
	mig     *mig.Instances
	points  *restorepoint.Store
	errors  *prometheus.CounterVec
	// memory belongs to Review and to the other reviewers, which run in one goroutine.
	memory *memory
}

// HoldingsOf returns the holdings of a node.
func HoldingsOf(f *Feature) Holdings { return f.observer.holdings }

// Absent returns the GPUs that the machine does not show while claims hold something of them, by name. It is for reviewers.
func (h Holdings) Absent(s *inventory.Snapshot) []discover.Physical {
	var absent []discover.Physical
	cards := h.memory.Cards
	for _, name := range slices.Sorted(maps.Keys(cards)) {
		known := slices.ContainsFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == name })
		if was := cards[name]; !known && len(h.held(&was.Physical)) > 0 {
			absent = append(absent, was.Physical)
		}
	}
	return absent
}

// Parts returns the names of the devices of a GPU that claims hold, sorted.
func (h Holdings) Parts(p *discover.Physical) []string {
	return slices.Sorted(maps.Keys(h.held(p)))
}

// names lists what claims could have of a GPU, published or not. Instances of Fettle are among them whatever the library says of the GPU.
func (h Holdings) names(p *discover.Physical) []string {
	names := partition.Names(partition.Physical{
		Device: p.Device, MIG: p.MIG, AMD: p.AMD, Functions: &partition.Functions{Total: p.VirtualFunctions},
	})
	made, _ := h.mig.Held() // Review reports what it cannot read
	for _, one := range made {
		if one.PCIAddress == p.Address && !slices.Contains(names, one.Device) {
			names = append(names, one.Device)
		}
	}
	return names
}

// held returns the devices of a GPU that claims hold. If that cannot be read, all of them count as held.
func (h Holdings) held(p *discover.Physical) map[string]bool {
	names := h.names(p)
	held, err := h.records.HeldOf(device.PoolName(h.node, p.Device.Kind), names)
	if err != nil {
		h.errors.WithLabelValues("partitions").Inc()
		held = map[string]bool{}
		for _, name := range names {
			held[name] = true
		}
	}
	// A binding of which the claim's record is lost is the claim's all the same.
	if point, ok, err := h.points.Find(vfio.StepKind, p.Address.String()); err != nil || ok && point.Claim != "" {
		held[partition.VFIOName(p.Device.Name)] = true
	}
	return held
}

// shares returns the devices of a GPU of which claims have shares. If that cannot be read, these are the devices that were shared by the
// last decision.
func (h Holdings) shares(c *seen, was *decision) map[string]bool {
	shares, err := h.records.SharedOf(device.PoolName(h.node, c.Device.Kind), slices.Collect(maps.Keys(c.held)))
	if err == nil {
		return shares
	}
	h.errors.WithLabelValues("partitions").Inc()
	shares = map[string]bool{}
	if was != nil && was.cards[c.Device.Name] != nil {
		for _, d := range was.cards[c.Device.Name].division.Devices {
			if d.Shared && c.held[d.Name] {
				shares[d.Name] = true
			}
		}
	}
	return shares
}

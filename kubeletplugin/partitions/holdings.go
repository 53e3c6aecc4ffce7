// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"maps"
	"slices"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/discover"
)

// Holdings says what claims hold of GPUs. It is for reviewers, which run in one goroutine with Review.
type Holdings struct{ feature *Feature }

// HoldingsOf returns the holdings of a node.
func HoldingsOf(f *Feature) Holdings { return Holdings{f} }

// Absent returns the GPUs that the machine does not show while claims hold something of them, by name.
func (h Holdings) Absent(s *inventory.Snapshot) []discover.Physical {
	var absent []discover.Physical
	cards := h.feature.memory.Cards
	for _, name := range slices.Sorted(maps.Keys(cards)) {
		known := slices.ContainsFunc(s.Physical, func(p discover.Physical) bool { return p.Device.Name == name })
		if was := cards[name]; !known && len(h.feature.heldOf(&was.Physical)) > 0 {
			absent = append(absent, was.Physical)
		}
	}
	return absent
}

// Parts returns the names of the devices of a GPU that claims hold, sorted.
func (h Holdings) Parts(p *discover.Physical) []string {
	return slices.Sorted(maps.Keys(h.feature.heldOf(p)))
}

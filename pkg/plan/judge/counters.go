// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// counterKey names a counter of a pool.
type counterKey struct{ set, name string }

// counterTable has the counters of a pool as they are before anything is allocated for the claims.
type counterTable struct {
	total, free map[counterKey]resource.Quantity
	// holders are the claims that hold some of each counter.
	holders map[counterKey][]Holder
	// below are the counters of which more is allocated than there is.
	below []counterKey
	// groups are the compatibility groups of the allocated devices of each counter set, one set a device.
	groups map[string][][]string
}

// holdings are what claims have of devices.
type holdings struct {
	features
	state   structured.AllocatedState
	holders map[structured.DeviceID][]Holder
}

// countersOf computes the table of a pool, once.
func (h *holdings) countersOf(p *pool) *counterTable {
	if p.counters != nil {
		return p.counters
	}
	t := &counterTable{
		total: map[counterKey]resource.Quantity{}, free: map[counterKey]resource.Quantity{},
		holders: map[counterKey][]Holder{}, groups: map[string][][]string{},
	}
	for _, set := range p.counterSets {
		for name, counter := range set.Counters {
			key := counterKey{set.Name, name}
			t.total[key], t.free[key] = counter.Value.DeepCopy(), counter.Value.DeepCopy()
		}
	}
	for _, slice := range slices.Concat(p.here, p.elsewhere) {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if id := structured.MakeDeviceID(p.driver, p.name, device.Name); h.allocated(id) {
				t.charge(device, h.holders[id])
			}
		}
	}
	for key, free := range t.free {
		if free.Sign() < 0 {
			t.below = append(t.below, key)
		}
	}
	p.counters = t
	return t
}

// charge takes away what an allocated device consumes.
func (t *counterTable) charge(device *resourceapi.Device, holders []Holder) {
	for _, consumption := range device.ConsumesCounters {
		t.groups[consumption.CounterSet] = append(t.groups[consumption.CounterSet], consumption.CompatibilityGroups)
		for name, counter := range consumption.Counters {
			key := counterKey{consumption.CounterSet, name}
			if free, ok := t.free[key]; ok {
				free.Sub(counter.Value)
				t.free[key] = free
				t.holders[key] = append(t.holders[key], holders...)
			}
		}
	}
}

// allocated says whether a claim has the device or a share of it.
func (h *holdings) allocated(id structured.DeviceID) bool {
	if h.variant == stable {
		return h.state.AllocatedDevices.Has(id)
	}
	return structured.IsDeviceAllocated(id, &h.state)
}

// needOf sums what a device consumes of each counter.
func needOf(device *resourceapi.Device) map[counterKey]resource.Quantity {
	need := map[counterKey]resource.Quantity{}
	for _, consumption := range device.ConsumesCounters {
		for name, counter := range consumption.Counters {
			key := counterKey{consumption.CounterSet, name}
			sum := need[key]
			sum.Add(counter.Value)
			need[key] = sum
		}
	}
	return need
}

// checkCounters compares what a device consumes with what is free of the pool's counters. A counter below zero blocks every device of the
// pool that consumes any counter: the scheduler compares them all.
func (h *holdings) checkCounters(p *pool, device *resourceapi.Device) []Check {
	if len(device.ConsumesCounters) == 0 || h.charged(p, device) {
		return nil
	}
	t, need := h.countersOf(p), needOf(device)
	var lines []string
	check := Check{Kind: KindCounters}
	for _, key := range t.lacking(need) {
		want, free, total := need[key], t.free[key], t.total[key]
		check.Amounts = append(check.Amounts, Amount{key.set, key.name, total.String(), free.String(), want.String()})
		check.Holders = append(check.Holders, t.holders[key]...)
		lines = append(lines, counterLine(key, total, free, want, t.holders[key]))
	}
	if len(lines) == 0 {
		return nil
	}
	check.Holders = uniqueHolders(check.Holders)
	check.Message = strings.Join(lines, "; ")
	return []Check{check}
}

func counterLine(key counterKey, total, free, want resource.Quantity, holders []Holder) string {
	if want.IsZero() {
		return fmt.Sprintf("counter %s of %s is below zero (%s of %s), which blocks all devices of the pool that consume counters: %s",
			key.name, key.set, free.String(), total.String(), heldBy(holders))
	}
	return fmt.Sprintf("counter %s of %s: needs %s, %s of %s is free: %s", key.name, key.set, want.String(), free.String(), total.String(),
		heldBy(holders))
}

// charged says whether the counters of a shared device are charged already, since a claim has a share of it.
func (h *holdings) charged(p *pool, device *resourceapi.Device) bool {
	return h.shared(device) && h.hasShare(structured.MakeDeviceID(p.driver, p.name, device.Name))
}

func (h *holdings) hasShare(id structured.DeviceID) bool {
	if _, found := h.state.AggregatedCapacity[id]; found {
		return true
	}
	for share := range h.state.AllocatedSharedDeviceIDs {
		if share.GetDeviceID() == id {
			return true
		}
	}
	return false
}

// lacking returns the counters that have less left than is needed, sorted. It looks at those that are needed, which are of one card, and
// not at those of all cards of the pool.
func (t *counterTable) lacking(need map[counterKey]resource.Quantity) []counterKey {
	out := slices.Clone(t.below)
	for key, want := range need {
		if free, known := t.free[key]; known && free.Sign() >= 0 && free.Cmp(want) < 0 {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, compareCounters)
	return out
}

func compareCounters(a, b counterKey) int {
	return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.name, b.name))
}

// invalidCounters says what is wrong with the counters that devices consume.
func invalidCounters(sets []resourceapi.CounterSet, in []*resourceapi.ResourceSlice) string {
	known := map[string]map[string]resourceapi.Counter{}
	for _, set := range sets {
		if _, found := known[set.Name]; found {
			return "two counter sets have the name " + set.Name
		}
		known[set.Name] = set.Counters
	}
	for _, slice := range in {
		for i := range slice.Spec.Devices {
			if message := unknownCounter(known, &slice.Spec.Devices[i]); message != "" {
				return message
			}
		}
	}
	return ""
}

func unknownCounter(known map[string]map[string]resourceapi.Counter, device *resourceapi.Device) string {
	for _, consumption := range device.ConsumesCounters {
		set, found := known[consumption.CounterSet]
		if !found {
			return fmt.Sprintf("device %s consumes counter set %s, which no slice of the pool has", device.Name, consumption.CounterSet)
		}
		for _, name := range slices.Sorted(maps.Keys(consumption.Counters)) {
			if _, found := set[name]; !found {
				return fmt.Sprintf("device %s consumes counter %s, which set %s does not have", device.Name, name, consumption.CounterSet)
			}
		}
	}
	return ""
}

// usesGroups says whether a device of the slice has compatibility groups.
func usesGroups(slice *resourceapi.ResourceSlice) bool {
	for i := range slice.Spec.Devices {
		for _, consumption := range slice.Spec.Devices[i].ConsumesCounters {
			if len(consumption.CompatibilityGroups) > 0 {
				return true
			}
		}
	}
	return false
}

// checkGroups compares the compatibility groups of a device with those of the allocated devices of its counter sets.
func (h *holdings) checkGroups(p *pool, device *resourceapi.Device) []Check {
	if !h.CompatibilityGroups || len(device.ConsumesCounters) == 0 || h.charged(p, device) {
		return nil
	}
	var checks []Check
	for _, consumption := range device.ConsumesCounters {
		common, any := commonGroups(h.countersOf(p).groups[consumption.CounterSet])
		if !any || compatible(common, consumption.CompatibilityGroups) {
			continue
		}
		checks = append(checks, Check{Kind: KindGroups, Message: fmt.Sprintf(
			"counter set %s: the device has the compatibility groups [%s], and what is allocated of the set has [%s]", consumption.CounterSet,
			strings.Join(consumption.CompatibilityGroups, " "), strings.Join(common, " "))})
	}
	return checks
}

// commonGroups returns the groups that all devices have, nil if they are without groups.
func commonGroups(devices [][]string) (common []string, any bool) {
	for i, groups := range devices {
		switch {
		case i == 0 && len(groups) > 0:
			common = slices.Sorted(slices.Values(groups))
		case common != nil && len(groups) > 0:
			common = slices.DeleteFunc(common, func(g string) bool { return !slices.Contains(groups, g) })
		}
	}
	return common, len(devices) > 0
}

func compatible(common, groups []string) bool {
	if common == nil || len(groups) == 0 {
		return common == nil && len(groups) == 0
	}
	return slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(common, g) })
}

// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Form is where the API wants counter sets.
type Form string

// The forms.
const (
	// FormSeparate is that of Kubernetes 1.35 and later: a slice has either counter sets or devices.
	FormSeparate Form = "Separate"
	// FormCombined is that of Kubernetes 1.34: a counter set is in the slice of the devices that consume it.
	FormCombined Form = "Combined"
)

// The limits of FormCombined, where all sets and all devices of a slice count together (k8s.io/api v0.34, resource/v1: ResourceSliceSpec).
const (
	maxCombinedCounters = resourceapi.ResourceSliceMaxCountersPerCounterSet
	maxCombinedConsumed = 1024
)

// Slice is the content of one ResourceSlice. Devices is nil in a slice with counter sets of FormSeparate, as the API wants it.
type Slice struct {
	SharedCounters []resourceapi.CounterSet
	Devices        []device.Device
}

// Slices cuts the devices of a pool into slices. Each card has a slice or more of its own, so that a change of one card rewrites no slice
// of another; devices that share nothing follow in the order of device.Compare. The counter sets of FormSeparate come first. The same cards
// and devices give the same slices; without devices there are none. The devices of a card keep their order.
//
// A card that FormCombined has no room for is an error that names the card; the other cards are returned.
func Slices(cards []device.Card, devices []device.Device, form Form) ([]Slice, error) {
	byCard := map[string][]device.Device{}
	for _, d := range devices {
		byCard[d.Card] = append(byCard[d.Card], d)
	}
	known := map[string]bool{"": true}
	used := slices.DeleteFunc(slices.Clone(cards), func(c device.Card) bool { return len(byCard[c.Name]) == 0 })
	sorted := slices.SortedFunc(slices.Values(used), func(a, b device.Card) int { return cmp.Compare(a.Name, b.Name) })
	sorted = slices.CompactFunc(sorted, func(a, b device.Card) bool { return a.Name == b.Name })
	for _, card := range sorted {
		known[card.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(byCard)) {
		if !known[name] {
			return nil, fmt.Errorf("device %s consumes counters of card %s, which there is not", byCard[name][0].Name, name)
		}
	}
	build := separate
	if form == FormCombined {
		build = combined
	}
	out, err := build(sorted, byCard)
	plain := slices.SortedFunc(slices.Values(byCard[""]), device.Compare)
	for run := range slices.Chunk(plain, device.MaxPerSlice) {
		out = append(out, Slice{Devices: run})
	}
	return out, err
}

// separate puts the counter sets first, eight a slice, and then each card's devices.
func separate(cards []device.Card, devices map[string][]device.Device) ([]Slice, error) {
	var out []Slice
	for run := range slices.Chunk(cards, resourceapi.ResourceSliceMaxCounterSets) {
		var sets []resourceapi.CounterSet
		for _, card := range run {
			sets = append(sets, counterSet(card))
		}
		out = append(out, Slice{SharedCounters: sets})
	}
	for _, card := range cards {
		for run := range slices.Chunk(devices[card.Name], device.MaxPerSlice) {
			out = append(out, Slice{Devices: run})
		}
	}
	return out, nil
}

// combined gives each card one slice with its counters and devices.
func combined(cards []device.Card, devices map[string][]device.Device) ([]Slice, error) {
	var out []Slice
	var err error
	for _, card := range cards {
		own := devices[card.Name]
		consumed := 0
		for _, d := range own {
			consumed += len(d.Consumes)
		}
		if len(own) > device.MaxPerSlice || len(card.Counters) > maxCombinedCounters || consumed > maxCombinedConsumed {
			err = errors.Join(err, fmt.Errorf("card %s: %d devices, %d counters, %d consumed together: Kubernetes 1.34 takes at most "+
				"%d, %d and %d in the slice of a counter set: divide the device into fewer parts", card.Name, len(own), len(card.Counters),
				consumed, device.MaxPerSlice, maxCombinedCounters, maxCombinedConsumed))
			continue
		}
		out = append(out, Slice{SharedCounters: []resourceapi.CounterSet{counterSet(card)}, Devices: slices.Clone(own)})
	}
	return out, err
}

func counterSet(card device.Card) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: card.Name, Counters: maps.Clone(card.Counters)}
}

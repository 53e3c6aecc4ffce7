// SPDX-License-Identifier: Apache-2.0

// Package gates knows the feature gates of Kubernetes that decide about devices: their defaults by version, what the scheduler's
// allocator may do with them, and which fields of objects the API server drops without them.
package gates

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/partition"
)

// The oldest and newest minor version of Kubernetes 1 whose gates are known. Older ones do not serve resource.k8s.io/v1.
const (
	oldest = 34
	newest = 37
)

// Newest is the version that is meant where none is given.
const Newest = "1.37"

// Set are the gates of one version.
type Set struct {
	minor int
	on    map[string]bool
}

// On says whether a gate is on.
func (s Set) On(gate string) bool { return s.on[gate] }

// Version returns the version, like "1.37".
func (s Set) Version() string { return fmt.Sprintf("1.%d", s.minor) }

// Changed returns the gates that differ from the defaults of the version.
func (s Set) Changed() map[string]bool {
	changed := map[string]bool{}
	for _, g := range table() {
		if d, known := g.at(s.minor); known && s.on[g.name] != d.on {
			changed[g.name] = s.on[g.name]
		}
	}
	return changed
}

// For returns the gates of a version with those that were given. Notes are about gates and versions that are not known here: a gate is
// left out, and a version that is too new is taken for the newest that is known.
func For(version string, given map[string]bool) (set Set, notes []string, err error) {
	minor, err := parse(cmp.Or(version, Newest))
	if err != nil {
		return Set{}, nil, err
	}
	if minor > newest {
		notes = append(notes, fmt.Sprintf("version 1.%d is newer than %s, the newest that is known: planned as %s", minor, Newest, Newest))
		minor = newest
	}
	set = Set{minor: minor, on: map[string]bool{}}
	for _, g := range table() {
		if d, known := g.at(minor); known {
			set.on[g.name] = defaultOf(d, given)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		note, err := set.give(name, given[name])
		if err != nil {
			return Set{}, nil, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return set, notes, set.check()
}

// defaultOf returns whether a gate is on that was not given itself. AllAlpha and AllBeta are for all gates of a stage.
func defaultOf(d stage, given map[string]bool) bool {
	for name, maturity := range map[string]maturity{"AllAlpha": alpha, "AllBeta": beta} {
		if on, ok := given[name]; ok && d.maturity == maturity {
			return on
		}
	}
	return d.on
}

// give sets one gate as the program's flag --feature-gates does.
func (s Set) give(name string, on bool) (note string, err error) {
	if name == "AllAlpha" || name == "AllBeta" {
		return "", nil
	}
	i := slices.IndexFunc(table(), func(g gate) bool { return g.name == name })
	if i < 0 {
		return fmt.Sprintf("feature gate %s does not decide about devices, or is not known: left out", name), nil
	}
	d, known := table()[i].at(s.minor)
	switch {
	case !known:
		return "", fmt.Errorf("feature gate %s does not exist in Kubernetes %s: want a newer version", name, s.Version())
	case d.locked && on != d.on:
		return "", fmt.Errorf("feature gate %s is always %t in Kubernetes %s: leave it out", name, d.on, s.Version())
	}
	s.on[name] = on
	return "", nil
}

// check refuses what the API server and the scheduler would not start with.
func (s Set) check() error {
	if !s.on[DynamicResourceAllocation] {
		return fmt.Errorf("feature gate %s is off: the scheduler would not look at claims, so there is nothing to plan",
			DynamicResourceAllocation)
	}
	for _, g := range table() {
		for _, needed := range g.needs {
			if s.on[g.name] && !s.on[needed] {
				return fmt.Errorf("feature gate %s needs %s, which is off in Kubernetes %s: turn both on or both off", g.name, needed, s.Version())
			}
		}
	}
	return nil
}

// parse reads a version as people and API servers write it: 1.36, v1.36.2, v1.36.2+k3s1.
func parse(version string) (minor int, err error) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) >= 2 && parts[0] == "1" {
		minor, err = strconv.Atoi(strings.TrimSuffix(parts[1], "+"))
	}
	if len(parts) < 2 || parts[0] != "1" || err != nil {
		return 0, fmt.Errorf("version %q: want a version of Kubernetes like %s", version, Newest)
	}
	if minor < oldest {
		return 0, fmt.Errorf("version %q: want 1.%d or newer, which serves resource.k8s.io/v1", version, oldest)
	}
	return minor, nil
}

// Kept says what the API server keeps of ResourceSlices.
func (s Set) Kept() (partition.Form, partition.Kept) {
	const separate = 35
	kept := partition.Kept{Counters: s.on[PartitionableDevices], Shares: s.on[ConsumableCapacity], Both: s.minor >= partition.MinorForBoth}
	switch {
	case !kept.Counters:
		return "", kept
	case s.minor >= separate:
		return partition.FormSeparate, kept
	}
	return partition.FormCombined, kept
}

// Features are what the allocator of the scheduler may do.
func (s Set) Features() structured.Features {
	return structured.Features{
		AdminAccess:             s.on[AdminAccess],
		CompatibilityGroups:     s.on[CompatibilityGroups],
		ConsumableCapacity:      s.on[ConsumableCapacity],
		DerivedAttributes:       s.on[DerivedAttributes],
		DeviceBindingAndStatus:  s.on[DeviceBindingConditions] && s.on[ResourceClaimDeviceStatus],
		DeviceTaints:            s.on[DeviceTaints],
		FractionalCapacityRange: s.on[FractionalCapacityRange],
		ListTypeAttributes:      s.on[ListTypeAttributes],
		OptionalNodeOperations:  s.on[OptionalNodeOperations],
		PartitionableDevices:    s.on[PartitionableDevices],
		PrioritizedList:         s.on[PrioritizedList],
	}
}

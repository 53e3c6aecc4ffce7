// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// Slot is an instance of a profile at a place.
type Slot struct {
	Profile   string            `json:"profile"`
	ProfileID uint32            `json:"profileID"`
	Placement nvml.MIGPlacement `json:"placement"`
}

// maxLayout is more than the instances of any GPU (7 up to Blackwell).
const maxLayout = 64

// maxTries bounds the search for places. The largest GPU has 26 placements, which takes a few hundred.
const maxTries = 100_000

// Place finds a slot for every instance of a static layout on an empty GPU: those with starts there, the others where they fit, the largest
// first and each as far left as it can be. The same layout always gives the same slots, in the order of their starts. A layout that does
// not fit is an error which says what is too much.
func Place(whole device.Device, m *nvml.MIG, layout []Instances) ([]Slot, error) {
	var fixed, free []*nvml.MIGProfile
	var starts []uint32
	var faults []error
	for _, instances := range layout {
		p := profileNamed(m, instances.Profile)
		if p == nil {
			faults = append(faults, fmt.Errorf("profile %.64s: this GPU has %s", instances.Profile, strings.Join(profileNames(m), ", ")))
			continue
		}
		if err := instances.check(); err != nil {
			faults = append(faults, err)
			continue
		}
		for i := range instances.Count {
			if len(instances.Starts) > 0 {
				fixed, starts = append(fixed, p), append(starts, instances.Starts[i])
			} else {
				free = append(free, p)
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if len(fixed)+len(free) > maxLayout {
		return nil, fmt.Errorf("%d instances: want at most %d", len(fixed)+len(free), maxLayout)
	}
	taken, err := pin(fixed, starts)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(free, func(a, b *nvml.MIGProfile) int {
		return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(b.Slices, a.Slices), cmp.Compare(a.Name, b.Name))
	})
	s := search{tries: maxTries, pinned: len(taken)}
	slots, ok := s.fill(free, taken)
	switch {
	case s.tries <= 0:
		return nil, errors.New("too many ways to place the instances: give their starts")
	case !ok:
		return nil, fmt.Errorf("%s do not fit on the GPU together, in any order", listed(slices.Concat(fixed, free)))
	}
	if err := engines(slices.Concat(fixed, free)).within(cardAmounts(whole, m)); err != nil {
		return nil, err
	}
	slices.SortFunc(slots, func(a, b Slot) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	return slots, nil
}

// engines are what instances need together beside memory slices, which their places are made of.
func engines(profiles []*nvml.MIGProfile) amounts {
	want := amounts{}
	for _, p := range profiles {
		want.add(profileAmounts(p))
	}
	delete(want, counterMemory)
	return want
}

// check judges the numbers of one entry.
func (i Instances) check() error {
	switch {
	case i.Count < 1 || i.Count > maxLayout:
		return fmt.Errorf("profile %s: count %d, want 1 to %d", i.Profile, i.Count, maxLayout)
	case len(i.Starts) > 0 && len(i.Starts) != i.Count:
		return fmt.Errorf("profile %s: %d starts for %d instances, want one each or none", i.Profile, len(i.Starts), i.Count)
	}
	return nil
}

// pin places what has starts.
func pin(profiles []*nvml.MIGProfile, starts []uint32) ([]Slot, error) {
	var taken []Slot
	for i, p := range profiles {
		at := slices.IndexFunc(p.Placements, func(q nvml.MIGPlacement) bool { return q.Start == starts[i] })
		if at < 0 {
			var can []string
			for _, q := range p.Placements {
				can = append(can, fmt.Sprint(q.Start))
			}
			return nil, fmt.Errorf("profile %s: no instance can start at %d, only at %s", p.Name, starts[i], strings.Join(can, ", "))
		}
		slot := Slot{Profile: p.Name, ProfileID: p.ID, Placement: p.Placements[at]}
		if other := overlapping(taken, slot.Placement); other != nil {
			return nil, fmt.Errorf("profile %s at %d overlaps profile %s at %d", p.Name, starts[i], other.Profile, other.Placement.Start)
		}
		taken = append(taken, slot)
	}
	return taken, nil
}

// search tries placements beside those that have starts, and gives up after so many.
type search struct{ tries, pinned int }

// fill places the profiles beside what is taken.
func (s *search) fill(profiles []*nvml.MIGProfile, taken []Slot) ([]Slot, bool) {
	if len(profiles) == 0 {
		return taken, true
	}
	p := profiles[0]
	placements := slices.SortedFunc(slices.Values(p.Placements), func(a, b nvml.MIGPlacement) int { return cmp.Compare(a.Start, b.Start) })
	for _, at := range placements {
		if s.tries--; s.tries <= 0 {
			return nil, false
		}
		// Of two alike instances the first is left of the second, or each set of places would be tried once for every order.
		if last := len(taken) - 1; last >= s.pinned && taken[last].Profile == p.Name && at.Start < taken[last].Placement.Start {
			continue
		}
		if overlapping(taken, at) != nil {
			continue
		}
		slot := Slot{Profile: p.Name, ProfileID: p.ID, Placement: at}
		if slots, ok := s.fill(profiles[1:], append(slices.Clip(taken), slot)); ok {
			return slots, true
		}
	}
	return nil, false
}

func overlapping(taken []Slot, at nvml.MIGPlacement) *Slot {
	for i := range taken {
		if taken[i].Placement.Overlaps(at) {
			return &taken[i]
		}
	}
	return nil
}

func profileNamed(m *nvml.MIG, name string) *nvml.MIGProfile {
	for i := range m.Profiles {
		if m.Profiles[i].Name == name {
			return &m.Profiles[i]
		}
	}
	return nil
}

func profileNames(m *nvml.MIG) []string {
	var names []string
	for _, p := range m.Profiles {
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// size is how many memory slices an instance takes.
func size(p *nvml.MIGProfile) uint32 {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

// listed writes profiles as "2 x 3g.40gb, 1 x 1g.10gb", by name.
func listed(profiles []*nvml.MIGProfile) string {
	counts := map[string]int{}
	for _, p := range profiles {
		counts[p.Name]++
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d x %s", counts[name], name))
	}
	return strings.Join(parts, ", ")
}

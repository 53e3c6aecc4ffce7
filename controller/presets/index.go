// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// Version tells the states of an object apart.
type Version struct {
	UID        types.UID
	Generation int64
}

// Index holds presets by what they decide, so that those which collide with one are found without a look at all others. The zero value
// is empty.
type Index struct {
	conditions preset.Conditions
	entries    map[types.NamespacedName]*entry
	// deciders are by thing and by namespace; that of the cluster's is empty.
	deciders map[thing]map[string]map[*entry]string
}

// entry is a preset as it was read. One with faults decides nothing.
type entry struct {
	key       types.NamespacedName
	version   Version
	faults    field.ErrorList
	preset    preset.Preset
	selection selection
	things    map[thing]string
}

// Sync takes in the presets that there are, by what they are now; parse is asked only for those that are new. It returns the other presets
// that those which came, changed or went decide something with, since what is said of these may be another now.
func (x *Index) Sync(
	ctx context.Context, now map[types.NamespacedName]Version, parse func(types.NamespacedName) preset.Preset,
) (touched []types.NamespacedName) {
	all := map[types.NamespacedName]bool{}
	for key, e := range x.entries {
		if now[key] != e.version {
			x.near(e, all)
			x.remove(e)
		}
	}
	for key, version := range now {
		if x.entries[key] == nil {
			e := x.add(ctx, key, version, parse(key))
			x.near(e, all)
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (x *Index) add(ctx context.Context, key types.NamespacedName, version Version, p preset.Preset) *entry {
	e := &entry{key: key, version: version, preset: p, faults: p.Faults(&x.conditions)}
	if len(e.faults) == 0 {
		e.selection, e.things = selectionOf(ctx, &e.preset, &x.conditions), thingsOf(&e.preset)
	}
	if x.entries == nil {
		x.entries, x.deciders = map[types.NamespacedName]*entry{}, map[thing]map[string]map[*entry]string{}
	}
	x.entries[key] = e
	for t, text := range e.things {
		if x.deciders[t] == nil {
			x.deciders[t] = map[string]map[*entry]string{}
		}
		if x.deciders[t][key.Namespace] == nil {
			x.deciders[t][key.Namespace] = map[*entry]string{}
		}
		x.deciders[t][key.Namespace][e] = text
	}
	return e
}

func (x *Index) remove(e *entry) {
	delete(x.entries, e.key)
	for t := range e.things {
		delete(x.deciders[t][e.key.Namespace], e)
		if len(x.deciders[t][e.key.Namespace]) == 0 {
			delete(x.deciders[t], e.key.Namespace)
		}
		if len(x.deciders[t]) == 0 {
			delete(x.deciders, t)
		}
	}
}

// near adds the other presets that decide of any thing otherwise.
func (x *Index) near(e *entry, all map[types.NamespacedName]bool) {
	for other := range x.against(e) {
		all[other.key] = true
	}
}

// against are the presets, of the same namespace or of the cluster, that decide of the same things otherwise.
func (x *Index) against(e *entry) map[*entry]bool {
	out := map[*entry]bool{}
	for t, text := range e.things {
		for namespace, deciders := range x.deciders[t] {
			if e.key.Namespace != "" && namespace != "" && namespace != e.key.Namespace {
				continue
			}
			for other, othersText := range deciders {
				if other != e && othersText != text {
					out[other] = true
				}
			}
		}
	}
	return out
}

// Faults are what is wrong with a preset that is in the index.
func (x *Index) Faults(key types.NamespacedName) field.ErrorList {
	if e := x.entries[key]; e != nil {
		return e.faults
	}
	return nil
}

// Conflict is what another preset says otherwise.
type Conflict struct {
	With preset.Origin
	// Things are what both decide, sorted.
	Things []string
	// Wins says that it is the other's that counts, and Why.
	Wins bool
	Why  string
}

// Conflicts are those of one preset. Shown are some of the Count, the one that is applied last first.
type Conflicts struct {
	Shown []Conflict
	Count int
}

// Conflicts are with the presets that may be for the same requests as the given one and decide of something otherwise. One that is for
// part of what this one is for is an exception from it, and is told of where it is made.
func (x *Index) Conflicts(key types.NamespacedName) Conflicts {
	e := x.entries[key]
	if e == nil {
		return Conflicts{}
	}
	var others []*entry
	for other := range x.against(e) {
		exception := other.selection.narrows(&e.selection) && !e.selection.narrows(&other.selection)
		if !exception && e.selection.meets(&other.selection) {
			others = append(others, other)
		}
	}
	slices.SortFunc(others, func(a, b *entry) int { return preset.Compare(&b.preset, &a.preset) })
	out := Conflicts{Count: len(others)}
	for _, other := range others[:min(len(others), mostConflicts)] {
		out.Shown = append(out.Shown, Conflict{
			With: other.preset.Origin(), Things: differing(e.things, other.things),
			Wins: preset.Compare(&e.preset, &other.preset) < 0, Why: why(&e.preset, &other.preset),
		})
	}
	return out
}

// differing are what both decide otherwise, sorted.
func differing(a, b map[thing]string) []string {
	var things []thing
	for t, text := range a {
		if other, ok := b[t]; ok && other != text {
			things = append(things, t)
		}
	}
	slices.SortFunc(things, compareThings)
	out := make([]string, 0, len(things))
	for _, t := range things {
		out = append(out, t.String())
	}
	return out
}

// why says what decides between two presets.
func why(a, b *preset.Preset) string {
	first, last := a, b
	if preset.Compare(a, b) > 0 {
		first, last = b, a
	}
	switch {
	case first.Namespace == "" && last.Namespace != "":
		return "presets of a namespace come after those of the cluster"
	case first.Rules.Priority != last.Rules.Priority:
		return fmt.Sprintf("its priority is %d, the other's %d", last.Rules.Priority, first.Rules.Priority)
	case !first.Created.Equal(last.Created):
		return "it is the younger at equal priority"
	}
	return "its name is the later at equal priority and age"
}

const (
	// mostConflicts is how many other presets a message names, mostThings how much of each.
	mostConflicts = 6
	mostThings    = 4
)

// String is for people.
func (c Conflicts) String() string {
	var parts []string
	for _, c := range c.Shown {
		things := strings.Join(c.Things[:min(len(c.Things), mostThings)], ", ")
		if more := len(c.Things) - mostThings; more > 0 {
			things += fmt.Sprintf(" and %d more", more)
		}
		winner := "this preset wins"
		if c.Wins {
			winner = "the other wins"
		}
		parts = append(parts, fmt.Sprintf("%s: %s says something else, and %s, since %s", things, c.With, winner, c.Why))
	}
	if more := c.Count - len(c.Shown); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more presets", more))
	}
	return strings.Join(parts, "; ")
}

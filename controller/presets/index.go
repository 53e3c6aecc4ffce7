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

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Version identifies a state of an object.
type Version struct {
	UID        types.UID
	Generation int64
}

// Index holds presets by their settings, so that the presets in conflict with one are found without a comparison with all others. The
// zero value is empty.
type Index struct {
	conditions preset.Conditions
	entries    map[types.NamespacedName]*entry
	// deciders are the presets that decide a setting, by setting and by namespace, with the value that each gives it. The namespace of
	// cluster presets is empty.
	deciders map[setting]map[string]map[*entry]string
}

// entry is what is compared of a preset as it was read. A preset with faults decides no setting.
type entry struct {
	key     types.NamespacedName
	version Version
	faults  field.ErrorList
	// preset has no rules but its place in the order: many presets are in the index that are too many for the cache.
	preset    preset.Preset
	selection selection
	settings  map[setting]string
}

// Sync updates the index to the presets that exist now, and calls parse for new versions only. It returns the other presets that share a
// setting with an added, changed or removed preset, since their conflicts may have changed.
func (x *Index) Sync(
	ctx context.Context, now map[types.NamespacedName]Version, parse func(types.NamespacedName) preset.Preset,
) (touched []types.NamespacedName) {
	all := map[types.NamespacedName]bool{}
	for key, e := range x.entries {
		if now[key] != e.version {
			x.addConflicting(e, all)
			x.remove(e)
		}
	}
	for key, version := range now {
		if x.entries[key] == nil {
			e := x.add(ctx, key, version, parse(key))
			x.addConflicting(e, all)
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (x *Index) add(ctx context.Context, key types.NamespacedName, version Version, p preset.Preset) *entry {
	e := &entry{key: key, version: version, faults: p.Faults(&x.conditions), preset: preset.Preset{
		Namespace: p.Namespace, Name: p.Name, Generation: p.Generation, Created: p.Created,
		Rules: v1alpha1.PresetRules{Priority: p.Rules.Priority},
	}}
	if len(e.faults) == 0 {
		e.selection, e.settings = selectionOf(ctx, &p, &x.conditions), settingsOf(&p)
	}
	if x.entries == nil {
		x.entries, x.deciders = map[types.NamespacedName]*entry{}, map[setting]map[string]map[*entry]string{}
	}
	x.entries[key] = e
	for t, text := range e.settings {
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
	for t := range e.settings {
		delete(x.deciders[t][e.key.Namespace], e)
		if len(x.deciders[t][e.key.Namespace]) == 0 {
			delete(x.deciders[t], e.key.Namespace)
		}
		if len(x.deciders[t]) == 0 {
			delete(x.deciders, t)
		}
	}
}

// addConflicting adds the keys of the presets that give any setting another value.
func (x *Index) addConflicting(e *entry, all map[types.NamespacedName]bool) {
	for other := range x.conflicting(e) {
		all[other.key] = true
	}
}

// conflicting returns the presets, of the same namespace or of the cluster, that give the same settings other values.
func (x *Index) conflicting(e *entry) map[*entry]bool {
	out := map[*entry]bool{}
	for t, text := range e.settings {
		for namespace, deciders := range x.deciders[t] {
			if e.key.Namespace != "" && namespace != "" && namespace != e.key.Namespace {
				continue
			}
			maps.Copy(out, others(deciders, e, text))
		}
	}
	return out
}

// others returns the presets that give a setting another value than one does.
func others(deciders map[*entry]string, e *entry, value string) map[*entry]bool {
	out := map[*entry]bool{}
	for other, text := range deciders {
		if other != e && text != value {
			out[other] = true
		}
	}
	return out
}

// Faults returns the faults of a preset in the index.
func (x *Index) Faults(key types.NamespacedName) field.ErrorList {
	if e := x.entries[key]; e != nil {
		return e.faults
	}
	return nil
}

// Conflict is another preset that gives the same settings other values.
type Conflict struct {
	With preset.Origin
	// Settings lists the settings that both presets decide, sorted.
	Settings []string
	// Wins says that the other preset's values count, and Why says why.
	Wins bool
	Why  string
}

// Conflicts are the conflicts of one preset. Shown are the first of Count, the preset that is applied last first.
type Conflicts struct {
	Shown []Conflict
	Count int
}

// Conflicts returns the conflicts of a preset with presets that may be for the same requests. A preset for a part of these requests is an
// exception on purpose, and its own status reports the conflict.
func (x *Index) Conflicts(key types.NamespacedName) Conflicts {
	e := x.entries[key]
	if e == nil {
		return Conflicts{}
	}
	var others []*entry
	for other := range x.conflicting(e) {
		exception := other.selection.narrowerThan(&e.selection) && !e.selection.narrowerThan(&other.selection)
		if !exception && e.selection.overlaps(&other.selection) {
			others = append(others, other)
		}
	}
	slices.SortFunc(others, func(a, b *entry) int { return preset.Compare(&b.preset, &a.preset) })
	out := Conflicts{Count: len(others)}
	for _, other := range others[:min(len(others), maxConflicts)] {
		out.Shown = append(out.Shown, Conflict{
			With: other.preset.Origin(), Settings: differing(e.settings, other.settings),
			Wins: preset.Compare(&e.preset, &other.preset) < 0, Why: why(&e.preset, &other.preset),
		})
	}
	return out
}

// differing returns the settings to which both give other values, sorted.
func differing(a, b map[setting]string) []string {
	var settings []setting
	for t, text := range a {
		if other, ok := b[t]; ok && other != text {
			settings = append(settings, t)
		}
	}
	slices.SortFunc(settings, compareSettings)
	out := make([]string, 0, len(settings))
	for _, t := range settings {
		out = append(out, t.String())
	}
	return out
}

// why says which rule decides between two presets.
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
	// maxConflicts is how many other presets a message names, maxSettings how many settings of each.
	maxConflicts = 6
	maxSettings  = 4
)

// String describes the conflicts in a condition's message.
func (c Conflicts) String() string {
	var parts []string
	for _, c := range c.Shown {
		settings := strings.Join(c.Settings[:min(len(c.Settings), maxSettings)], ", ")
		if more := len(c.Settings) - maxSettings; more > 0 {
			settings += fmt.Sprintf(" and %d more", more)
		}
		winner := "this preset wins"
		if c.Wins {
			winner = "the other wins"
		}
		parts = append(parts, fmt.Sprintf("%s: %s says something else, and %s, since %s", settings, c.With, winner, c.Why))
	}
	if more := c.Count - len(c.Shown); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more presets", more))
	}
	return strings.Join(parts, "; ")
}

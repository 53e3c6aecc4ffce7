// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// place is what one preset puts at a path of the container.
type place struct {
	from preset.Origin
	// content is the host's path of what is mounted there, or the target of a link.
	content string
}

// take gives a path of the container to what comes first, mount or link, and reports whether the path was free. Stronger presets come
// first.
func (l *lookup) take(at string, p place) bool {
	if l.isTaken(at, p) {
		return false
	}
	if l.places == nil {
		l.places = map[string]place{}
	}
	l.places[at] = p
	return true
}

// isTaken reports whether something else has a path, and notes which preset loses it.
func (l *lookup) isTaken(at string, p place) bool {
	winner, taken := l.places[at]
	if taken && winner.content != p.content {
		l.override(at, winner.from, p.from)
	}
	return taken
}

func (l *lookup) override(at string, winner, loser preset.Origin) {
	note := fmt.Sprintf("%s of %s overrides that of %s", at, winner, loser)
	if winner != loser && !slices.Contains(l.overrides, note) {
		l.overrides = append(l.overrides, note)
	}
}

// takeMount notes the place of a mount that was just added.
func (l *lookup) takeMount(from preset.Origin) {
	m := l.mounted[len(l.mounted)-1]
	l.take(m.ContainerPath, place{from: from, content: m.HostPath})
}

// library mounts one library with its links. A loader finds a library by its soname, so a library whose soname a stronger preset's library
// has is left out. It would not be loaded, unless a later run of ldconfig in the container preferred it for its version.
func (l *lookup) library(from preset.Origin, root string, library *hostlib.Library) error {
	in := func(name string) string { return path.Join(libraryDir, name) }
	_, sameName := l.places[in(library.Name)] // as bind notes
	soname := in(library.Soname)
	if library.Soname != "" && !sameName && l.places[soname].from != from && l.isTaken(soname, place{from: from, content: library.Name}) {
		return nil
	}
	bound, err := l.bind(&from, path.Join(root, library.HostPath), in(library.Name))
	if err != nil || !bound {
		return err
	}
	for _, link := range library.Links {
		l.libraryLink(from, link.Target, in(link.Name))
	}
	return nil
}

// libraryLink adds a link that belongs to a library, unless a stronger preset has something at its path.
func (l *lookup) libraryLink(from preset.Origin, target, at string) {
	if l.take(at, place{from: from, content: target}) {
		l.links = append(l.links, target+hooktext.LinkSeparator+at)
	}
}

// link adds a link that a preset names. It replaces the link of a weaker preset, and yields to that of a stronger one. It cannot replace a
// mount: the hook leaves mounts alone, since what is below them is the node's.
func (l *lookup) link(link v1alpha1.PresetLink, from preset.Origin) error {
	if err := hooktext.CheckLinkTarget(link.Target); err != nil {
		return fmt.Errorf("link %s: target %q %w", link.Path, link.Target, err)
	}
	if err := linkable(link.Target + hooktext.LinkSeparator + link.Path); err != nil {
		return err
	}
	if m := l.mountAbove(link.Path); m != nil {
		return fmt.Errorf("link %s: a preset mounts %s there, in which no link can be made: choose another path", link.Path, m.ContainerPath)
	}
	old, taken := l.places[link.Path]
	if taken && l.strength(old.from) > l.strength(from) {
		l.override(link.Path, old.from, from)
		return nil
	}
	if taken && old.content != link.Target {
		l.override(link.Path, from, old.from)
	}
	delete(l.places, link.Path)
	l.links = slices.DeleteFunc(l.links, func(earlier string) bool { return strings.HasSuffix(earlier, hooktext.LinkSeparator+link.Path) })
	l.libraryLink(from, link.Target, link.Path)
	return nil
}

// strength is greater for a preset that is applied later.
func (l *lookup) strength(from preset.Origin) int { return slices.Index(l.presets, from) }

// mountAbove returns the mount in which a path of the container is: the deepest one, since mounts may be nested.
func (l *lookup) mountAbove(name string) *container.Mount {
	var deepest *container.Mount
	for i := range l.mounted {
		m := &l.mounted[i]
		if mountpath.Within(name, m.ContainerPath) && (deepest == nil || len(m.ContainerPath) > len(deepest.ContainerPath)) {
			deepest = m
		}
	}
	return deepest
}

// givers returns the preset of each mount by its path in the container, and of each variable.
func (l *lookup) givers(variables []preset.Variable) map[string]string {
	out := map[string]string{}
	for i := range variables {
		out[variables[i].Name] = variables[i].From[len(variables[i].From)-1].String()
	}
	for i := range l.mounted {
		at := l.mounted[i].ContainerPath
		out[at] = l.places[at].from.String()
	}
	return out
}

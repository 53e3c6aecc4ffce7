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

// places are what the container of one request has at its paths.
type places struct {
	// taken are the mounts and links by their path. presets are in the order of application.
	taken   map[string]place
	presets []preset.Origin
	// mounted lists all mounts, with their original paths. links are TARGET::PATH, and must be made.
	mounted []container.Mount
	links   []string
	// overrides says which preset has a file or link instead of another preset.
	overrides []string
}

// take gives a path of the container to what comes first, mount or link, and reports whether the path was free. Stronger presets come
// first.
func (p *places) take(at string, one place) bool {
	if p.isTaken(at, one) {
		return false
	}
	p.taken[at] = one
	return true
}

// isTaken reports whether something else has a path, and notes which preset loses it.
func (p *places) isTaken(at string, one place) bool {
	winner, taken := p.taken[at]
	if taken && winner.content != one.content {
		p.override(at, winner.from, one.from)
	}
	return taken
}

func (p *places) override(at string, winner, loser preset.Origin) {
	note := fmt.Sprintf("%s of %s overrides that of %s", at, winner, loser)
	if winner != loser && !slices.Contains(p.overrides, note) {
		p.overrides = append(p.overrides, note)
	}
}

// takeMount notes the place of a mount that was just added.
func (p *places) takeMount(from preset.Origin) {
	m := p.mounted[len(p.mounted)-1]
	p.take(m.ContainerPath, place{from: from, content: m.HostPath})
}

// library mounts one library with its links. A loader finds a library by its soname, so a library whose soname a stronger preset's library
// has is left out. It would not be loaded, unless a later run of ldconfig in the container preferred it for its version.
func (l *lookup) library(from preset.Origin, root string, library *hostlib.Library) error {
	in := func(name string) string { return path.Join(libraryDir, name) }
	_, sameName := l.places.taken[in(library.Name)] // as bind notes
	soname := in(library.Soname)
	if library.Soname != "" && !sameName && l.places.taken[soname].from != from &&
		l.places.isTaken(soname, place{from: from, content: library.Name}) {
		return nil
	}
	bound, err := l.bind(&from, path.Join(root, library.HostPath), in(library.Name))
	if err != nil || !bound {
		return err
	}
	for _, link := range library.Links {
		l.places.libraryLink(from, link.Target, in(link.Name))
	}
	return nil
}

// libraryLink adds a link that belongs to a library, unless a stronger preset has something at its path.
func (p *places) libraryLink(from preset.Origin, target, at string) {
	if p.take(at, place{from: from, content: target}) {
		p.links = append(p.links, target+hooktext.LinkSeparator+at)
	}
}

// link adds a link that a preset names. It replaces the link of a weaker preset, and yields to that of a stronger one. It cannot replace a
// mount: the hook leaves mounts alone, since what is below them is the node's.
func (p *places) link(link v1alpha1.PresetLink, from preset.Origin) error {
	if err := hooktext.CheckLinkTarget(link.Target); err != nil {
		return fmt.Errorf("link %s: target %q %w", link.Path, link.Target, err)
	}
	if err := linkable(link.Target + hooktext.LinkSeparator + link.Path); err != nil {
		return err
	}
	if m := p.mountAbove(link.Path); m != nil {
		return fmt.Errorf("link %s: a preset mounts %s there, in which no link can be made: choose another path", link.Path, m.ContainerPath)
	}
	old, taken := p.taken[link.Path]
	if taken && p.strength(old.from) > p.strength(from) {
		p.override(link.Path, old.from, from)
		return nil
	}
	if taken && old.content != link.Target {
		p.override(link.Path, from, old.from)
	}
	delete(p.taken, link.Path)
	p.links = slices.DeleteFunc(p.links, func(earlier string) bool { return strings.HasSuffix(earlier, hooktext.LinkSeparator+link.Path) })
	p.libraryLink(from, link.Target, link.Path)
	return nil
}

// strength is greater for a preset that is applied later.
func (p *places) strength(from preset.Origin) int { return slices.Index(p.presets, from) }

// mountAbove returns the mount in which a path of the container is: the deepest one, since mounts may be nested.
func (p *places) mountAbove(name string) *container.Mount {
	var deepest *container.Mount
	for i := range p.mounted {
		m := &p.mounted[i]
		if mountpath.Within(name, m.ContainerPath) && (deepest == nil || len(m.ContainerPath) > len(deepest.ContainerPath)) {
			deepest = m
		}
	}
	return deepest
}

// givers returns the preset of each mount by its path in the container, and of each variable.
func (p *places) givers(variables []preset.Variable) map[string]string {
	out := map[string]string{}
	for i := range variables {
		out[variables[i].Name] = variables[i].From[len(variables[i].From)-1].String()
	}
	for i := range p.mounted {
		at := p.mounted[i].ContainerPath
		out[at] = p.taken[at].from.String()
	}
	return out
}

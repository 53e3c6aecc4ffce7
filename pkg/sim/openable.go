// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The virtual terminals (Documentation/admin-guide/devices.txt): character devices that nearly every kernel can open, that are
// distinct, and that no container runtime allows by default.
const (
	terminalMajor = 4
	terminals     = 63
)

// Openable is the machine with its character devices renumbered to 4:1, 4:2 and so on, in the order of their own numbers, so that
// containers can open them on a kernel without the drivers. It changes dev nodes, dev attributes, links of sys/dev/char,
// /proc/devices, and NVIDIA's minors together with the nodes that are named by them (dev/nvidia0 may become dev/nvidia9). DRM
// nodes keep their names, and so does drm_render_minor of the KFD, which means a name. Control nodes, whose minors the NVIDIA
// driver fixes, have their numbers from dev/ only. Block devices stay.
//
// More than 63 numbers are an error.
func (m *Machine) Openable() (*Machine, error) {
	r := renumbering{block: blockAttributes(m.Entries), majors: driverMajors(m.Entries)}
	numbers := r.collect(m.Entries)
	if len(numbers) > terminals {
		return nil, fmt.Errorf("the machine has %d character device numbers: at most %d can be made openable; "+
			"use one with fewer devices", len(numbers), terminals)
	}
	r.to = make(map[Number]Number, len(numbers))
	r.major = map[uint32]bool{}
	for i, n := range numbers {
		r.to[n] = Number{Major: terminalMajor, Minor: uint32(i) + 1}
		r.major[n.Major] = true
	}
	var entries []numbered
	for _, e := range m.Entries {
		entries = append(entries, numbered{Entry: r.entry(e)})
	}
	out, err := newMachine(entries)
	if err != nil {
		return nil, fmt.Errorf("renumber the character devices: %w", err)
	}
	return out, nil
}

// renumbering is what an entry's new form depends on.
type renumbering struct {
	block  map[string]bool   // dev attributes of block devices
	majors map[string]uint32 // of character drivers by name, from proc/devices
	to     map[Number]Number
	major  map[uint32]bool // those that occur in to
}

// collect finds every character device number of the tree, sorted.
func (r renumbering) collect(entries []Entry) []Number {
	seen := map[Number]bool{}
	for _, e := range entries {
		if e.Kind == Char {
			seen[e.Number] = true
		}
		if n, ok := r.devAttribute(e); ok {
			seen[n] = true
		}
		for _, f := range minorFiles {
			match := f.field.FindSubmatch(e.Data)
			if match == nil || !f.pattern.MatchString(e.Path) {
				continue
			}
			if n, ok := r.number(f, string(match[2])); ok {
				seen[n] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b Number) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
}

// devAttribute reads the number of a character device's dev attribute.
func (r renumbering) devAttribute(e Entry) (Number, bool) {
	if e.Kind != File || !strings.HasPrefix(e.Path, "sys/") || path.Base(e.Path) != "dev" || r.block[e.Path] {
		return Number{}, false
	}
	n, err := parseNumber(strings.TrimSpace(string(e.Data)))
	return n, err == nil
}

// entry is the renumbered form.
func (r renumbering) entry(e Entry) Entry {
	switch e.Kind {
	case Char:
		e.Path = r.nodePath(e)
		e.Number = r.to[e.Number]
	case Symlink:
		if name, ok := strings.CutPrefix(e.Path, "sys/dev/char/"); ok {
			e.Path = "sys/dev/char/" + r.renamed(name)
		}
	case File:
		e.Data = r.data(e)
	case Dir, Unreadable:
	}
	return e
}

// nodePath renames a node that is named by its minor.
func (r renumbering) nodePath(e Entry) string {
	for _, f := range minorFiles {
		minor, ok := strings.CutPrefix(e.Path, f.node)
		if !ok {
			continue
		}
		if n, ok := r.number(f, minor); ok && n == e.Number {
			return f.node + strconv.Itoa(int(r.to[n].Minor))
		}
	}
	return e.Path
}

// renamed is the new form of a number's text, or the same text if it is none of ours.
func (r renumbering) renamed(text string) string {
	if n, err := parseNumber(text); err == nil {
		if to, ok := r.to[n]; ok {
			return to.String()
		}
	}
	return text
}

func (r renumbering) data(e Entry) []byte {
	if n, ok := r.devAttribute(e); ok {
		return []byte(r.to[n].String() + "\n")
	}
	if e.Path == procDevices {
		return r.procDevices(e.Data)
	}
	for _, f := range minorFiles {
		match := f.field.FindSubmatchIndex(e.Data)
		if match == nil || !f.pattern.MatchString(e.Path) {
			continue
		}
		if n, ok := r.number(f, string(e.Data[match[4]:match[5]])); ok {
			minor := strconv.Itoa(int(r.to[n].Minor))
			return slices.Concat(e.Data[:match[4]], []byte(minor), e.Data[match[5]:])
		}
	}
	return e.Data
}

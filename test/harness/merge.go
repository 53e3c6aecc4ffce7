// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/sim"
)

// drmStep is how far the DRM numbers of each further machine are moved, so that two do not both have a card0.
const drmStep = 64

// drmNumber matches what the kernel numbers as it finds cards: names of nodes, and minors of the DRM major.
var drmNumber = regexp.MustCompile(`\b(card|renderD|226:)([0-9]+)\b`)

// merge puts the devices of several machines into one host. The machines must not share a PCI address; files that describe the whole
// host are the first machine's, but for /proc/devices, which names the drivers of all. DRM numbers are moved, so a further machine must
// not have AMD's topology, which holds such numbers as text of its own.
func merge(machines []*sim.Machine) (*sim.Machine, error) {
	byPath := map[string]sim.Entry{}
	for i, m := range machines {
		for _, e := range m.Entries {
			e = moved(e, i*drmStep)
			have, taken := byPath[e.Path]
			switch {
			case !taken:
			case e.Path == "proc/devices":
				e.Data = joinDrivers(have.Data, e.Data)
			case e.Kind != have.Kind:
				return nil, fmt.Errorf("merge machines: %s is a %s and a %s", e.Path, have.Kind, e.Kind)
			case e.Kind == sim.Symlink && e.Target != have.Target || e.Kind == sim.Char && e.Number != have.Number:
				return nil, fmt.Errorf("merge machines: %s differs: use machines without a common PCI address", e.Path)
			default:
				e = have
			}
			byPath[e.Path] = e
		}
	}
	merged := &sim.Machine{}
	for _, e := range byPath {
		merged.Entries = append(merged.Entries, e)
	}
	slices.SortFunc(merged.Entries, func(a, b sim.Entry) int { return cmp.Compare(a.Path, b.Path) })
	return merged, nil
}

// moved is the entry with other DRM numbers.
func moved(e sim.Entry, by int) sim.Entry {
	if by == 0 {
		return e
	}
	shift := func(text string) string {
		return drmNumber.ReplaceAllStringFunc(text, func(match string) string {
			parts := drmNumber.FindStringSubmatch(match)
			n, err := strconv.Atoi(parts[2])
			if err != nil {
				return match
			}
			return parts[1] + strconv.Itoa(n+by)
		})
	}
	const drmMajor = 226
	e.Path, e.Target = shift(e.Path), shift(e.Target)
	if e.Kind == sim.File {
		e.Data = []byte(shift(string(e.Data)))
	}
	if e.Kind == sim.Char && e.Number.Major == drmMajor {
		e.Number.Minor += uint32(by)
	}
	return e
}

// joinDrivers adds to a /proc/devices the character drivers of another.
func joinDrivers(a, b []byte) []byte {
	const heading = "\nBlock devices:"
	characters, rest, _ := bytes.Cut(a, []byte(heading))
	more, _, _ := bytes.Cut(b, []byte(heading))
	for line := range bytes.Lines(more) {
		line = bytes.TrimRight(line, "\n")
		if len(line) > 0 && !bytes.Contains(characters, line) {
			characters = append(bytes.Clone(characters), append(line, '\n')...)
		}
	}
	return slices.Concat(characters, []byte(heading), rest)
}

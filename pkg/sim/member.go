// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

// member adds the file, or the block of files, of one archive member.
func (p *parser) member(at int, f txtar.File) {
	if p.full() {
		return
	}
	t, err := p.template.named(f.Name)
	if err != nil {
		p.fail(at, err)
		return
	}
	if t == nil {
		p.content(at, f.Name, f.Data)
		return
	}
	for i, row := range t.rows {
		if p.full() {
			return
		}
		name, data := t.fill(row, f.Name), t.fill(row, string(f.Data))
		if i == 0 && strings.Contains(data, "${") {
			p.fail(at, fmt.Errorf("member %s: its lines may name no table but %s, as its name does", f.Name, t.name))
			return
		}
		p.content(at, name, []byte(data))
	}
}

// content adds a member whose name is settled.
func (p *parser) content(at int, name string, data []byte) {
	if dir, ok := strings.CutSuffix(name, "/*"); ok {
		p.block(at, dir, data)
		return
	}
	var text strings.Builder
	for i, line := range strings.SplitAfter(string(data), "\n") {
		for _, t := range p.expand(sourceLine{at + 1 + i, line}) {
			text.WriteString(t)
		}
	}
	p.add(at, Entry{Path: name, Kind: File, Data: []byte(text.String())}, nil)
}

// block adds the one-line files and links of a directory.
func (p *parser) block(at int, dir string, data []byte) {
	for _, l := range splitLines(at+1, data) {
		for _, text := range p.expand(l) {
			name, value, _ := strings.Cut(strings.TrimSpace(text), " ")
			e := Entry{Path: dir + "/" + name, Kind: File}
			value = strings.TrimSpace(value)
			if target, ok := strings.CutPrefix(value, "->"); ok {
				e.Kind, e.Target = Symlink, strings.TrimSpace(target)
			} else {
				e.Data = []byte(value + "\n")
			}
			p.add(l.number, e, nil)
		}
	}
}

// directives are the header lines that make one entry.
var directives = map[string]struct {
	args  int
	usage string
	make  func(args []string) (Entry, error)
}{
	"dir":        {1, "dir PATH", func(a []string) (Entry, error) { return Entry{Path: a[0], Kind: Dir}, nil }},
	"unreadable": {1, "unreadable PATH", func(a []string) (Entry, error) { return Entry{Path: a[0], Kind: Unreadable}, nil }},
	"symlink":    {2, "symlink PATH TARGET", linkEntry},
	"char":       {2, "char PATH MAJOR:MINOR", charEntry},
	"bytes":      {2, "bytes PATH HEX", bytesEntry},
}

func (p *parser) directive(l sourceLine) {
	for _, text := range p.expand(l) {
		words := strings.Fields(text)
		d, ok := directives[words[0]]
		if !ok {
			p.fail(l.number, fmt.Errorf("directive %q: want bytes, char, dir, row, symlink, table or unreadable", words[0]))
			return
		}
		if len(words) != 1+d.args {
			p.fail(l.number, fmt.Errorf("directive %q: want %s", text, d.usage))
			return
		}
		e, err := d.make(words[1:])
		p.add(l.number, e, err)
	}
}

func linkEntry(args []string) (Entry, error) {
	return Entry{Path: args[0], Kind: Symlink, Target: args[1]}, nil
}

func charEntry(args []string) (Entry, error) {
	number, err := parseNumber(args[1])
	return Entry{Path: args[0], Kind: Char, Number: number}, err
}

func bytesEntry(args []string) (Entry, error) {
	data, err := hex.DecodeString(args[1])
	if err != nil {
		return Entry{}, fmt.Errorf("bytes of %s: want pairs of hexadecimal digits: %w", args[0], err)
	}
	return Entry{Path: args[0], Kind: File, Data: data}, nil
}

// parseNumber reads the form of a dev attribute.
func parseNumber(s string) (Number, error) {
	major, minor, _ := strings.Cut(s, ":")
	a, errA := strconv.ParseUint(major, 10, 32)
	b, errB := strconv.ParseUint(minor, 10, 32)
	if errA != nil || errB != nil || a > maxMajor || b > maxMinor {
		return Number{}, fmt.Errorf("device number %q: want MAJOR:MINOR, at most %d:%d, such as 195:0", s, maxMajor, maxMinor)
	}
	return Number{Major: uint32(a), Minor: uint32(b)}, nil
}

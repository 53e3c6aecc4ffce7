// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
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

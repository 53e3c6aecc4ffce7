// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/tools/txtar"
)

// Bounds of an expanded machine, far above any real one: tables multiply, and a small file must not fill the memory.
const (
	maxEntries = 1 << 16
	maxBytes   = 32 << 20
)

// errTooBig ends a parse at once; other errors are collected.
var errTooBig = fmt.Errorf("the machine has more than %d entries or %d bytes: use smaller tables", maxEntries, maxBytes)

// Parse reads a machine file, whose form the package comment describes. An error names every wrong line and the form expected.
func Parse(data []byte) (*Machine, error) {
	archive := txtar.Parse(data)
	p := parser{}
	header := p.tables(archive.Comment)
	for _, d := range header {
		p.directive(d)
	}
	at := 1 + bytes.Count(archive.Comment, []byte("\n"))
	for _, f := range archive.Files {
		p.member(at, f)
		at += 1 + bytes.Count(f.Data, []byte("\n"))
	}
	if p.size > maxBytes || len(p.entries) > maxEntries {
		return nil, errTooBig
	}
	m, err := newMachine(p.entries)
	if err := errors.Join(append(p.errs, err)...); err != nil {
		return nil, err
	}
	return m, nil
}

// parser collects entries and errors.
type parser struct {
	template tables
	entries  []numbered
	size     int
	errs     []error
}

// sourceLine is a line of the machine file.
type sourceLine struct {
	number int
	text   string
}

func (p *parser) fail(line int, err error) {
	if err != nil {
		err = fmt.Errorf("line %d: %w", line, err)
		p.size += len(err.Error())
		p.errs = append(p.errs, err)
	}
}

// full says that the bounds are reached; it is asked before anything is added, so that memory stays bounded.
func (p *parser) full() bool {
	return p.size > maxBytes || len(p.entries) > maxEntries
}

func (p *parser) add(line int, e Entry, err error) {
	if err == nil {
		err = checkPath(e.Path)
	}
	if err == nil && e.Kind == Symlink {
		err = checkTarget(e.Path, e.Target)
	}
	if err != nil {
		p.fail(line, err)
		return
	}
	p.size += len(e.Path) + len(e.Target) + len(e.Data)
	p.entries = append(p.entries, numbered{Entry: e, line: line})
}

// expand repeats a line for the rows of the table it names, while there is room.
func (p *parser) expand(l sourceLine) []string {
	if p.full() {
		return nil
	}
	texts, err := p.template.expand(l.text, maxBytes-p.size)
	p.fail(l.number, err)
	for _, t := range texts {
		p.size += len(t)
	}
	return texts
}

// tables reads the tables of the header and hands back its other directives.
func (p *parser) tables(comment []byte) []sourceLine {
	p.template = tables{}
	var current *table
	var rest []sourceLine
	for _, l := range splitLines(1, comment) {
		words := strings.Fields(l.text)
		switch words[0] {
		case "table":
			t, err := p.template.declare(words[1:])
			p.fail(l.number, err)
			current = t
		case "row":
			p.fail(l.number, current.addRow(words[1:]))
		default:
			rest = append(rest, l)
		}
	}
	return rest
}

// splitLines numbers the lines that say something: not empty, not a comment.
func splitLines(first int, data []byte) []sourceLine {
	var lines []sourceLine
	for i, text := range strings.Split(string(data), "\n") {
		text = strings.TrimSpace(text)
		if text != "" && !strings.HasPrefix(text, "#") {
			lines = append(lines, sourceLine{first + i, text})
		}
	}
	return lines
}

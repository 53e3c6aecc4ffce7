// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"io"
	"regexp"
)

// The colours, as ECMA-48 selects them.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// paint says what of a line has a colour: its first group, which says in words what the colour says.
type paint struct {
	pattern *regexp.Regexp
	colour  string
}

func paints() []paint {
	return []paint{
		{regexp.MustCompile(`^(fettle:) `), red},
		{regexp.MustCompile(`^ *(refused:|missing:|lacking, so that the claim would wait:|not in running) ?`), red},
		{regexp.MustCompile(`^ *((?:warning|note|waiting|without [a-z]+):) `), yellow},
		{regexp.MustCompile(`^([A-Z][A-Z]+(?: +[A-Z]+)+)$`), bold},
	}
}

// Colour colours lines on their way to a terminal: the words that tell a failure or a warning, and the heads of tables.
type Colour struct {
	terminal io.Writer
	paints   []paint
	line     []byte
}

// NewColour returns a writer to a terminal.
func NewColour(terminal io.Writer) *Colour { return &Colour{terminal: terminal, paints: paints()} }

// Write writes whole lines and keeps the rest.
func (c *Colour) Write(text []byte) (int, error) {
	c.line = append(c.line, text...)
	var out []byte
	for {
		end := bytes.IndexByte(c.line, '\n')
		if end < 0 {
			break
		}
		out = append(append(out, c.coloured(c.line[:end])...), '\n')
		c.line = c.line[end+1:]
	}
	if len(out) == 0 {
		return len(text), nil
	}
	if _, err := c.terminal.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Flush writes a line that has no end.
func (c *Colour) Flush() error {
	rest := c.line
	c.line = nil
	if len(rest) == 0 {
		return nil
	}
	_, err := c.terminal.Write(rest)
	return err
}

func (c *Colour) coloured(line []byte) []byte {
	for _, p := range c.paints {
		at := p.pattern.FindSubmatchIndex(line)
		if at == nil {
			continue
		}
		var out []byte
		out = append(append(out, line[:at[2]]...), p.colour...)
		out = append(append(out, line[at[2]:at[3]]...), reset...)
		return append(out, line[at[3]:]...)
	}
	return line
}

// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// TestProgressLine: nothing is shown for a second, then what is done and how far; other text takes the line's place.
func TestProgressLine(t *testing.T) {
	var screen bytes.Buffer
	now := time.Unix(0, 0)
	p := NewProgress(&screen, func() time.Time { return now })
	p.draw()
	r := p.Reader(io.NopCloser(strings.NewReader(strings.Repeat("x", 3<<20))), "pulling", 4<<20)
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	now = now.Add(quiet - 1)
	p.draw()
	if screen.Len() > 0 {
		t.Errorf("shown before its time: %q", &screen)
	}
	now = now.Add(1)
	p.draw()
	p.Step("packing", 0)
	if _, err := p.Counter(io.Discard).Write(make([]byte, 2048)); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	p.draw()
	p.Objects("reading nodes", 1200, 5000)
	p.draw()
	w := p.Above(&screen)
	fmt.Fprintln(w, "note")
	fmt.Fprintln(w, "again")
	want := "\r\x1b[Kpulling 3.0 MiB of 4.0 MiB (1 s)" + "\r\x1b[Kpacking 2.0 KiB (2 s)" + "\r\x1b[Kreading nodes 1200 of 5000 (2 s)" +
		"\r\x1b[Knote\nagain\n"
	if screen.String() != want {
		t.Errorf("got  %q\nwant %q", &screen, want)
	}
}

// TestNoProgress: without a terminal everything passes through.
func TestNoProgress(t *testing.T) {
	p := FromContext(t.Context())
	p.Step("pulling", 1)
	var out bytes.Buffer
	if p.Above(&out) != io.Writer(&out) || p.Counter(&out) != io.Writer(&out) {
		t.Error("a writer was wrapped")
	}
	r := io.NopCloser(&out)
	if p.Reader(r, "x", 1) != r {
		t.Error("a reader was wrapped")
	}
}

// TestColour: the colours are around words that say the same, and a line is coloured however it is cut into writes.
func TestColour(t *testing.T) {
	for in, want := range map[string]string{
		"fettle: no\n":                       red + "fettle:" + reset + " no\n",
		"warning: x\n":                       yellow + "warning:" + reset + " x\n",
		"  refused: x\n":                     "  " + red + "refused:" + reset + " x\n",
		"      not in running main, prep\n":  "      " + red + "not in running" + reset + " main, prep\n",
		"NAME  PRODUCT  PCIE ROOT\ngpu-0\n":  bold + "NAME  PRODUCT  PCIE ROOT" + reset + "\ngpu-0\n",
		"KIND\n":                             "KIND\n",
		"fettles: not its name\n":            "fettles: not its name\n",
		"the end of this has no line, note:": "the end of this has no line, note:",
	} {
		var screen bytes.Buffer
		c := NewColour(&screen)
		for i := range len(in) {
			if n, err := c.Write([]byte(in[i : i+1])); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		if screen.String() != want {
			t.Errorf("got  %q\nwant %q", &screen, want)
		}
	}
}

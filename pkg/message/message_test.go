// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/fettle-dev/fettle/pkg/message"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 10, ""},
		{"short", 10, "short"},
		{"exactly-10", 10, "exactly-10"},
		{"eleven chars", 11, "eleven c..."},
		{"ééééé", 9, "ééé..."},
		{"ééééé", 8, "éé..."},
		{"not \xff UTF-8", 20, "not � UTF-8"},
		{"\xffx\xff", 6, "�..."},
		{"two\nlines\x1b", 20, "two\nlines\x1b"},
		{"longer", 3, "..."},
	} {
		if got := message.Clip(tt.text, tt.limit); got != tt.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.want)
		}
	}
}

func TestLine(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  string
	}{
		{" short\n", 10, "short"},
		{"a\tb\nc\u00a0d", 10, "a b c d"},
		{"red \x1b[31m \u202e \xff \ufffd", 20, "red ?[31m ? ? ?"},
		{"eleven chars", 11, "eleven c..."},
		{"ééééé", 8, "éé..."},
		{"éé\xc3\xff\xff\xff", 8, "éé????"},
		{"\u00a0x\u00a0\u00a0\u00a0\u00a0y", 8, "x   ..."},
		{strings.Repeat("\u2028", 4), 9, ""},
		{"x" + strings.Repeat("\u2028", 4) + "x", 9, "x??..."},
	} {
		if got := message.Line(tt.text, tt.limit); got != tt.want {
			t.Errorf("Line(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.want)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("ééééé", 8)
	f.Add("\xff\xfe\xfd", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 3 {
			return // shorter than the mark
		}
		got := message.Clip(text, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("Clip(%q, %d) = %q: %d bytes", text, limit, got, len(got))
		}
		clean := strings.ToValidUTF8(text, "�")
		if fits := len(clean) <= limit; fits && got != clean || !fits && !strings.HasSuffix(got, "...") {
			t.Errorf("Clip(%q, %d) = %q", text, limit, got)
		}
	})
}

func FuzzLine(f *testing.F) {
	f.Add(" éé\u00a0ééé\n", 8)
	f.Add("\xff\xfe\xfd\x1b[2J", 5)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 3 {
			return // shorter than the mark
		}
		got := message.Line(text, limit)
		prints := !strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) })
		if len(got) > limit || !utf8.ValidString(got) || !prints {
			t.Errorf("Line(%q, %d) = %q: %d bytes", text, limit, got, len(got))
		}
		if len(strings.TrimSpace(text)) > limit && !strings.HasSuffix(got, "...") {
			t.Errorf("Line(%q, %d) = %q does not say that it was cut", text, limit, got)
		}
	})
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"name\tvalue\nä €\n":    "name\tvalue\nä €\n",
		"\x1b[2Jgone":           `\x1b[2Jgone`,
		"a\rb\x7f\u0085":        `a\rb\x7f\u0085`,
		"a\u202egnp.exe":        `a\u202egnp.exe`,
		"\xff\xfe, ä, \x00":     `\xff\xfe, ä, \x00`,
		"a replaced \uFFFD one": "a replaced \uFFFD one",
		"":                      "",
	} {
		var out bytes.Buffer
		n, err := io.WriteString(message.Printable(&out), text)
		if err != nil || n != len(text) || out.String() != want {
			t.Errorf("%q became %q, want %q (%d, %v)", text, out.String(), want, n, err)
		}
	}
}

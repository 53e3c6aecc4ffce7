// SPDX-License-Identifier: Apache-2.0

// Package message makes texts fit for what shows them: conditions, Events, errors and terminals. What it returns is valid UTF-8, no longer
// than the limit, and says where it was cut.
package message

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of the API server. Texts of limits that a CRD's schema sets are clipped beside its types.
const (
	// MaxEventNote is how many bytes the note of an Event may have (NoteLengthLimit of events.k8s.io/v1).
	MaxEventNote = 1024
	// MaxCondition is how many characters the message of a metav1.Condition may have.
	MaxCondition = 32768
	// ReadableCondition is what Fettle writes at most into conditions of its own objects, so that people can still read them.
	ReadableCondition = 2048
)

// mark ends a text that was cut.
const mark = "..."

// EventNote clips a text to what an Event takes.
func EventNote(text string) string { return Clip(text, MaxEventNote) }

// Clip cuts a text to at most limit bytes, of which the last three say that it was cut; no limit is below three. Bytes that are not UTF-8
// become U+FFFD, since the API server takes no others, and paths and kernel files may hold any.
func Clip(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	return head(text, max(limit-len(mark), 0)) + mark
}

// head is at most size bytes of a longer text. No character is cut in two.
func head(text string, size int) string {
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// Line is Clip for text that somebody outside wrote, such as a registry or a producer of images: it becomes one line without the spaces
// around it, and what does not print becomes "?", so that it moves no terminal's cursor. Breaks, tabs and no-break spaces become spaces.
func Line(text string, limit int) string {
	// It may be as long as its writer likes: no more of it is looked at than can be shown.
	text = strings.TrimSpace(text)
	more := len(text) > limit
	if more {
		text = head(text, limit)
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\u00a0':
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
	if more {
		return Clip(text+mark, limit)
	}
	return text
}

// Printable returns a writer for a terminal. Characters that would move the cursor, change colours or the order of what is shown are
// written as escapes of Go, such as \x1b, and so are bytes that are not UTF-8. Line breaks and tabs stay. A call of Write must not end
// within a character.
func Printable(w io.Writer) io.Writer { return printable{w} }

type printable struct{ w io.Writer }

func (p printable) Write(text []byte) (int, error) {
	if utf8.Valid(text) && !bytes.ContainsFunc(text, escaped) {
		return p.w.Write(text)
	}
	var out []byte
	for rest := text; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, rest[0])
		case escaped(r):
			quoted := strconv.QuoteRuneToASCII(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		default:
			out = append(out, rest[:size]...)
		}
		rest = rest[size:]
	}
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

func escaped(r rune) bool { return r != '\n' && r != '\t' && Misleads(r) }

// Misleads reports whether a character changes what a terminal shows, or the order of what it shows. Line breaks and tabs do.
func Misleads(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

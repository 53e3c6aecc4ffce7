// SPDX-License-Identifier: Apache-2.0

// Package manifest cuts files of Kubernetes manifests into their documents.
package manifest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"unicode/utf16"
)

// Document is one YAML document of a stream.
type Document struct {
	// Line is where its first line with content stands, counted from 1.
	Line int
	Text []byte
	// Blank is how many bytes of white space stand at the start of Text behind the document's marker.
	Blank int
	// Before has the lines with comments of documents without content that stand before it.
	Before []byte
}

// Split cuts a YAML stream at its document markers, "---" and "..." at the start of a line (YAML 1.2, section 9.1), and
// drops documents without content. What follows a marker on its line belongs to the next document. A stream of JSON objects without
// markers is cut as well, since the parsers of YAML read the first and say nothing of the others. The text may be in UTF-16.
func Split(data []byte) []Document {
	data = decoded(data)
	var documents []Document
	current := Document{}
	var before []byte
	flush := func() {
		if current.Line > 0 {
			current.Before, before = before, nil
			documents = append(documents, objects(current)...)
		} else {
			before = append(before, commentLines(current.Text)...)
		}
		current = Document{}
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if rest, marker := cutMarker(line); marker {
			flush()
			line = rest
			current.Blank = len(rest) - len(bytes.TrimLeft(rest, " \t\r\n"))
		}
		if trimmed := bytes.TrimSpace(line); current.Line == 0 && len(trimmed) > 0 && trimmed[0] != '#' && trimmed[0] != '%' {
			current.Line = number
		}
		current.Text = append(current.Text, line...)
	}
	flush()
	return documents
}

// decoded returns a text in UTF-8, without the mark of the order of bytes that editors on Windows put first.
func decoded(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	}
	var units []uint16
	for unit := range slices.Chunk(data[2:], 2) {
		if len(unit) == 2 {
			units = append(units, order.Uint16(unit))
		}
	}
	return []byte(string(utf16.Decode(units)))
}

// objects cuts a document of several JSON objects. Any other is returned as it is.
func objects(d Document) []Document {
	begin := contentAt(d.Text)
	if !bytes.HasPrefix(d.Text[begin:], []byte("{")) {
		return []Document{d}
	}
	var all []Document
	for at, line := 0, d.Line; ; {
		var object json.RawMessage
		rest := json.NewDecoder(bytes.NewReader(d.Text[begin:]))
		end := len(d.Text)
		if rest.Decode(&object) == nil {
			end = begin + int(rest.InputOffset())
		}
		next := end + contentAt(d.Text[end:])
		if next == len(d.Text) {
			end = next
		}
		one := Document{Line: line, Text: d.Text[at:end]}
		if at == 0 {
			one.Blank, one.Before = d.Blank, d.Before
		}
		all = append(all, one)
		if end == len(d.Text) {
			return all
		}
		line += bytes.Count(d.Text[begin:next], []byte("\n"))
		at, begin = next, next
	}
}

// contentAt returns where the first content of a text stands behind white space, comments and directives, which is its end if it has none.
func contentAt(text []byte) int {
	at := 0
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' && trimmed[0] != '%' {
			return at + len(line) - len(bytes.TrimLeft(line, " \t\r\n"))
		}
		at += len(line)
	}
	return at
}

// commentLines returns the lines of a text that are comments, each with an end.
func commentLines(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] == '#' {
			out = append(append(out, trimmed...), '\n')
		}
	}
	return out
}

// cutMarker returns what follows a document marker.
func cutMarker(line []byte) (rest []byte, ok bool) {
	for _, marker := range []string{"---", "..."} {
		rest, ok := bytes.CutPrefix(line, []byte(marker))
		if ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			return rest, true
		}
	}
	return nil, false
}

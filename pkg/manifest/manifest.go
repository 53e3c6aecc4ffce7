// SPDX-License-Identifier: Apache-2.0

// Package manifest cuts files of Kubernetes manifests into their documents.
package manifest

import "bytes"

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
// drops documents without content. What follows a marker on its line belongs to the next document.
func Split(data []byte) []Document {
	var documents []Document
	current := Document{}
	var before []byte
	flush := func() {
		if current.Line > 0 {
			current.Before, before = before, nil
			documents = append(documents, current)
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

// SPDX-License-Identifier: Apache-2.0

package admission

import "bytes"

// document is one YAML document of a stream.
type document struct {
	// line is where its first line with content stands, counted from 1.
	line int
	text []byte
}

// splitDocuments cuts a YAML stream at its document markers, "---" and "..." at the start of a line (YAML 1.2, section 9.1), and
// drops documents without content. What follows a marker on its line belongs to the next document.
func splitDocuments(data []byte) []document {
	var documents []document
	current := document{}
	flush := func() {
		if current.line > 0 {
			documents = append(documents, current)
		}
		current = document{}
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if rest, marker := cutMarker(line); marker {
			flush()
			line = rest
		}
		if trimmed := bytes.TrimSpace(line); current.line == 0 && len(trimmed) > 0 && trimmed[0] != '#' && trimmed[0] != '%' {
			current.line = number
		}
		current.text = append(current.text, line...)
	}
	flush()
	return documents
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

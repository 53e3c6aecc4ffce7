// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
)

// Format writes the machine without tables: Parse of the result gives the same entries. One-line files and links of a directory
// share a block, bytes that are no text become directives.
func (m *Machine) Format() []byte {
	archive := &txtar.Archive{}
	var header bytes.Buffer
	blocks := map[string][]string{}
	for _, e := range m.Entries {
		dir, name := path.Split(e.Path)
		line, inBlock := blockLine(name, e)
		switch {
		case inBlock && dir != "":
			blocks[dir+"*"] = append(blocks[dir+"*"], line)
		case e.Kind == File && plainText(e.Data):
			archive.Files = append(archive.Files, txtar.File{Name: e.Path, Data: e.Data})
		case e.Kind == File && len(e.Data) == 0:
			archive.Files = append(archive.Files, txtar.File{Name: e.Path})
		default:
			fmt.Fprintln(&header, directiveLine(e))
		}
	}
	for name, lines := range blocks {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(strings.Join(lines, "\n") + "\n")})
	}
	slices.SortFunc(archive.Files, func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
	archive.Comment = header.Bytes()
	return txtar.Format(archive)
}

// directiveLine is the header's form of an entry.
func directiveLine(e Entry) string {
	switch e.Kind {
	case Symlink:
		return fmt.Sprintf("symlink %s %s", e.Path, e.Target)
	case Char:
		return fmt.Sprintf("char %s %s", e.Path, e.Number)
	case File:
		return fmt.Sprintf("bytes %s %x", e.Path, e.Data)
	case Dir, Unreadable:
	}
	return fmt.Sprintf("%s %s", e.Kind, e.Path)
}

// blockLine is the entry's line in its directory's block, if it can be one: a link, or a file of a single printable line.
func blockLine(name string, e Entry) (string, bool) {
	if strings.HasPrefix(name, "#") || strings.HasPrefix(name, "-") {
		return "", false
	}
	if e.Kind == Symlink {
		return name + " -> " + e.Target, true
	}
	value, ok := bytes.CutSuffix(e.Data, []byte("\n"))
	if e.Kind != File || !ok {
		return "", false
	}
	text := string(value)
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if strings.ContainsFunc(text, odd) || strings.TrimSpace(text) != text || strings.HasPrefix(text, "->") ||
		strings.Contains(text, "${") {
		return "", false
	}
	return strings.TrimSuffix(name+" "+text, " "), true
}

// plainText says that a member can hold the data as it is.
func plainText(data []byte) bool {
	odd := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
	return len(data) > 0 && data[len(data)-1] == '\n' && utf8.Valid(data) && !bytes.ContainsFunc(data, odd) &&
		!bytes.Contains(data, []byte("${")) && !bytes.HasPrefix(data, []byte("-- ")) && !bytes.Contains(data, []byte("\n-- "))
}

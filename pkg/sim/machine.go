// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"
)

// Machine is a host tree as values.
type Machine struct {
	// Entries are sorted by path, and each path occurs once. Directories that hold something have no entry of their own.
	Entries []Entry
}

// Kind says what an entry of the tree is.
type Kind string

// The kinds of entry.
const (
	File       Kind = "file"
	Dir        Kind = "dir"
	Symlink    Kind = "symlink"
	Char       Kind = "char"
	Unreadable Kind = "unreadable"
)

// Entry is one path of the tree.
type Entry struct {
	// Path is relative to the root of the tree, with slashes: sys/bus/pci/devices/0000:17:00.0.
	Path string
	Kind Kind
	// Data is what a File holds.
	Data []byte
	// Target is where a Symlink points.
	Target string
	// Number is that of a Char.
	Number Number
}

// Number is a device number.
type Number struct {
	Major, Minor uint32
}

// The kernel's own bounds: 12 bits of major, 20 of minor (include/linux/kdev_t.h).
const (
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// String gives the form of a dev attribute: 195:0.
func (n Number) String() string {
	return fmt.Sprintf("%d:%d", n.Major, n.Minor)
}

// numbered is an entry and the line it was written on.
type numbered struct {
	Entry
	line int
}

// newMachine sorts the entries and refuses those that cannot exist side by side.
func newMachine(entries []numbered) (*Machine, error) {
	slices.SortStableFunc(entries, func(a, b numbered) int { return cmp.Compare(a.Path, b.Path) })
	byPath := make(map[string]numbered, len(entries))
	for _, e := range entries {
		byPath[e.Path] = e
	}
	var errs []error
	m := &Machine{}
	for i, e := range entries {
		if i > 0 && entries[i-1].Path == e.Path {
			errs = append(errs, lineError(e.line, "path %s is given twice, first on line %d: keep one", e.Path, entries[i-1].line))
			continue
		}
		if above, ok := leafAbove(byPath, e.Path); ok {
			errs = append(errs, lineError(e.line, "path %s lies below the %s %s of line %d: only a directory can hold it",
				e.Path, above.Kind, above.Path, above.line))
			continue
		}
		m.Entries = append(m.Entries, e.Entry)
	}
	return m, errors.Join(errs...)
}

// leafAbove finds an entry on the way to a path that cannot hold anything.
func leafAbove(byPath map[string]numbered, name string) (numbered, bool) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if e, ok := byPath[dir]; ok && e.Kind != Dir {
			return e, true
		}
	}
	return numbered{}, false
}

// checkPath accepts what fs.ValidPath does, less the root itself and all that the text form cannot carry.
func checkPath(name string) error {
	switch {
	case name == "." || !fs.ValidPath(name):
		return fmt.Errorf("path %q: want a relative path without empty, \".\" or \"..\" segments, such as sys/class/drm", name)
	case path.Base(name) == "*":
		return fmt.Errorf("path %q: a file cannot be called *; only a member's name may end in /*", name)
	}
	return checkWord("path", name)
}

// checkWord refuses white space, control characters and template marks.
func checkWord(what, word string) error {
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if strings.ContainsFunc(word, odd) || strings.Contains(word, "${") {
		return fmt.Errorf("%s %q: want printable characters without white space", what, word)
	}
	return nil
}

// checkTarget accepts a relative link that, read as text, stays in the tree.
func checkTarget(link, target string) error {
	if target == "" || path.IsAbs(target) {
		return fmt.Errorf("target %q of %s: want a relative path", target, link)
	}
	if err := checkWord("target", target); err != nil {
		return err
	}
	if end := path.Join(path.Dir(link), target); end == ".." || strings.HasPrefix(end, "../") {
		return fmt.Errorf("target %q of %s leads out of the tree: want at most %d \"..\"", target, link, strings.Count(link, "/"))
	}
	return nil
}

func lineError(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...))
}

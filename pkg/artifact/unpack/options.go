// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"crypto/sha256"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/fettle-dev/fettle/pkg/message"
)

// Layer describes a layer of an image.
type Layer struct {
	MediaType string
	// Digest and Size are those of the compressed bytes, DiffID is the digest of the tar.
	Digest, DiffID [sha256.Size]byte
	Size           int64
}

// Limits bound what an image may hold. A limit of 0 stands for the one in DefaultLimits.
type Limits struct {
	// Layer is the largest size of a compressed layer, Total that of the tars of all layers together.
	Layer, Total int64
	// File is the largest size of a file.
	File int64
	// Entries is the largest number of entries in all layers together, and Names the largest sum of the lengths of their names. A directory
	// that a name implies counts as if the layer had an entry for it.
	Entries int
	Names   int64
	// Ratio is the largest quotient of plain and compressed bytes at any point of a layer. The first 16 MiB are exempt.
	Ratio int64
}

// DefaultLimits returns limits for caches of compiled kernels, of which the largest have some GiB in some ten thousand files. Only entries
// are kept in memory, so their number bounds it, to less than 64 MiB.
func DefaultLimits() Limits {
	return Limits{Layer: 16 << 30, Total: 32 << 30, File: 8 << 30, Entries: 40_000, Names: 6 << 20, Ratio: 200}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	setDefault(&l.Layer, d.Layer)
	setDefault(&l.Total, d.Total)
	setDefault(&l.File, d.File)
	setDefault(&l.Entries, d.Entries)
	setDefault(&l.Names, d.Names)
	setDefault(&l.Ratio, d.Ratio)
	return l
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Options restrict what an image may hold.
type Options struct {
	Limits Limits
	// Paths are the names that are allowed: one that ends in a slash stands for all below it, any other for a file. Empty: all names.
	Paths []string
	// Arrived is called with the number of plain bytes that were read, before they are used. Its error ends the extraction. It may be nil.
	Arrived func(n int64) error
}

// Entry is one name of a tree.
type Entry struct {
	Path string
	// Mode is fs.ModeDir|0777 for a directory, and 0666 or 0777 for a file.
	Mode fs.FileMode
	Size int64
	// At is the place of the content in the sink, as File.Close returned it.
	At int64
}

// Tree is what was extracted.
type Tree struct {
	// Entries are sorted by path. The root is not among them.
	Entries []Entry
	// Bytes is the sum of the sizes of all files.
	Bytes int64
}

const (
	maxPart  = 255
	maxDepth = 32
	maxPath  = 4096
)

// checkName checks the name of an entry and returns it without the slash at the end of a directory's.
func checkName(name string, dir bool) (string, *Error) {
	if dir {
		name = strings.TrimSuffix(name, "/")
	}
	switch {
	case name == "":
		return "", violation(RuleName, "it is empty: expected a relative path")
	case len(name) > maxPath:
		return "", violation(RuleName, "it has %d bytes, expected at most %d", len(name), maxPath)
	case !utf8.ValidString(name):
		return "", violation(RuleName, "it is not UTF-8")
	case strings.ContainsFunc(name, message.Misleads):
		return "", violation(RuleName, "it has a control character: expected only characters that show as they are")
	case name[0] == '/':
		return "", violation(RuleName, "it is absolute, expected a relative path")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		depth++
		switch {
		case part == "" || part == "." || part == "..":
			return "", violation(RuleName, "it has a part %q, expected none that is empty, . or ..", part)
		case len(part) > maxPart:
			return "", violation(RuleName, "it has a part of %d bytes, expected at most %d", len(part), maxPart)
		case depth > maxDepth:
			return "", violation(RuleName, "it has more than %d parts", maxDepth)
		}
	}
	return name, nil
}

// allowed reports whether a name is one of the paths, lies below one that ends in a slash, or is a directory on the way to one.
func allowed(paths []string, name string, dir bool) bool {
	for _, p := range paths {
		switch below := strings.HasSuffix(p, "/"); {
		case below && strings.HasPrefix(name, p):
			return true
		case !below && !dir && name == p:
			return true
		case dir && strings.HasPrefix(p, name+"/"):
			return true
		}
	}
	return false
}

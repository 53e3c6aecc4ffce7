// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"crypto/sha256"
	"io/fs"
)

// Layer says what a layer of an image is.
type Layer struct {
	MediaType string
	// Digest and Size are of the bytes as they are read, DiffID is of the tar.
	Digest, DiffID [sha256.Size]byte
	Size           int64
}

// Limits bound what an image may hold. A limit that is 0 is that of DefaultLimits.
type Limits struct {
	// Layer is how large a layer may be as it is read, Total how large the tars of all layers together.
	Layer, Total int64
	// File is how large a file may be.
	File int64
	// Entries is how many entries all layers may have together, and Names how many bytes their names.
	Entries int
	Names   int64
	// Ratio is how many times larger than its compressed bytes a layer may be at any point, beyond 16 MiB.
	Ratio int64
}

// DefaultLimits are those for caches of compiled kernels, the largest of which have some GiB in some ten thousand files. The entries are
// what is kept in memory, so their number bounds it, to less than 64 MiB.
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

// Options say what an image may hold.
type Options struct {
	Limits Limits
	// Paths are the names that it may have: those that end in a slash with all below them, the others as files. None: any.
	Paths []string
}

// Entry is one name of a tree.
type Entry struct {
	Path string
	// Mode is fs.ModeDir|0777 for a directory, and 0666 or 0777 for a file.
	Mode fs.FileMode
	Size int64
	// At is where the sink has the content, as its File said.
	At int64
}

// Tree is what was extracted.
type Tree struct {
	// Entries are sorted by path. The root is not among them.
	Entries []Entry
	// Bytes are those of all files.
	Bytes int64
}

// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// HashOf is the sha256 of a line for each entry: its quoted path, its mode in octal with 40000 for a directory, its size, and the XXH64 of
// its content, in 16 hexadecimal digits. The entries are sorted by path first. It is for what a disk does to a tree: that the content is
// what somebody signed was seen when the layers were read, by their digests, and who can change the store can change what is kept of it.
func HashOf(entries []Entry) [sha256.Size]byte {
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	h := sha256.New()
	for i := range entries {
		e := &entries[i]
		fmt.Fprintf(h, "%q %o %d %016x\n", e.Path, unixMode(e.Mode), e.Size, e.Sum)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func unixMode(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	if mode.IsDir() {
		m |= 0o40000
	}
	return m
}

// Read reads a tree anew, to compare its hash with what it was. What is neither a directory nor a regular file, and a mode with more
// than permissions, is an error.
func Read(ctx context.Context, fsys fs.FS) (*Tree, error) {
	t, buffer := &Tree{}, make([]byte, copySize)
	err := fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil || path == "." {
			return err
		}
		e, err := readEntry(fsys, path, d, buffer)
		if err == nil {
			t.Entries, t.Bytes = append(t.Entries, e), t.Bytes+e.Size
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the tree: %w", err)
	}
	t.Hash = HashOf(t.Entries)
	return t, nil
}

func readEntry(fsys fs.FS, path string, d fs.DirEntry, buffer []byte) (Entry, error) {
	info, err := d.Info()
	if err != nil {
		return Entry{}, err
	}
	// The reader of images leaves the bits of stat(2) in, which mean nothing in a FileMode.
	const known = fs.ModeType | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky | fs.ModePerm
	e := Entry{Path: path, Mode: info.Mode() & known}
	if e.Mode&^(fs.ModeDir|fs.ModePerm) != 0 {
		return e, fmt.Errorf("%s is %v: %w: expected a directory or a file", path, info.Mode(), ErrRefused)
	}
	if e.Mode.IsDir() {
		return e, nil
	}
	f, err := fsys.Open(path)
	if err != nil {
		return e, err
	}
	h := xxhash.New()
	e.Size, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buffer)
	e.Sum = h.Sum64()
	return e, errors.Join(err, f.Close())
}

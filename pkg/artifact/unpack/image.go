// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/erofs/go-erofs"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// The two files of an Image.
const (
	// ImageIndex is the file system: names, modes, and the places of the contents in ImageData. It is the file that is mounted.
	ImageIndex = "index.erofs"
	// ImageData has the content of all files, each from the start of a block. It is the mount's device.
	ImageData = "data"
)

const blockSize = 4096

// Image is a Sink that makes an EROFS file system, which the kernel can mount read-only from two files, whatever the number of names. The
// content is written as it comes, and the index at the end, from the tree. Both are synced when Finish returns.
type Image struct {
	// Files makes files in the directory of the image.
	Files Files

	data *blocks
}

// Mkdir implements Sink. Finish makes the directories.
func (i *Image) Mkdir(string, fs.FileMode) error { return nil }

// Remove implements Sink. The content of a file that a later layer hides stays in ImageData, and no name refers to it.
func (i *Image) Remove(string, bool) error { return nil }

// File implements Sink.
func (i *Image) File(string, fs.FileMode) (File, error) {
	if err := i.begin(); err != nil {
		return nil, err
	}
	return &imageFile{blocks: i.data, at: i.data.size}, nil
}

func (i *Image) begin() error {
	if i.data != nil {
		return nil
	}
	f, err := i.Files.OpenFile(ImageData, create, 0o600)
	if err != nil {
		return err
	}
	i.data = &blocks{file: f, out: bufio.NewWriterSize(f, 2*copySize)}
	return nil
}

// Close closes the data file if Finish did not.
func (i *Image) Close() error {
	if i.data == nil || i.data.closed {
		return nil
	}
	i.data.closed = true
	return i.data.file.Close()
}

// Finish implements Sink. It writes the index.
func (i *Image) Finish(t *Tree) error {
	if err := i.begin(); err != nil { // a tree without files has one block of data, since a device must not be empty
		return err
	}
	if i.data.size == 0 {
		if _, err := i.data.Write([]byte{0}); err != nil {
			return err
		}
		if err := i.data.pad(); err != nil {
			return err
		}
	}
	if err := i.data.out.Flush(); err != nil {
		return err
	}
	f, err := i.Files.OpenFile(ImageIndex, create, 0o600)
	if err != nil {
		return err
	}
	// Both files are being written before the first sync waits, so the second has nothing to do and the journal is written once.
	writeOut(i.data.file, i.data.begun, i.data.size-i.data.begun)
	if err = i.index(t, f); err == nil {
		writeOut(f, 0, 0)
		err = errors.Join(i.data.file.Datasync(), f.Datasync())
	}
	return errors.Join(err, f.Close(), i.Close())
}

func (i *Image) index(t *Tree, f disk.File) error {
	out := &seekable{file: f}
	w := erofs.Create(out, erofs.WithBlockSize(blockSize), erofs.WithBuildTime(0, 0))
	if err := w.CopyFrom(newIndexFS(t, i.data.size/blockSize), erofs.MetadataOnly()); err != nil {
		return fmt.Errorf("make the index: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("make the index: %w", err)
	}
	return nil
}

// blocks writes the data file: contents one after the other, each from the start of a block.
type blocks struct {
	file disk.File
	out  *bufio.Writer
	size int64
	// begun is the number of bytes of which the write to the disk has begun.
	begun  int64
	closed bool
	zeros  [blockSize]byte
}

func (b *blocks) Write(p []byte) (int, error) {
	n, err := b.out.Write(p)
	b.size += int64(n)
	if written := b.size - int64(b.out.Buffered()); err == nil && written >= b.begun+writeOutSize {
		writeOut(b.file, b.begun, written-b.begun)
		b.begun = written
	}
	return n, err
}

// writeOutSize is large enough for one write of the disk, and small enough that little is left for the sync at the end.
const writeOutSize = 2 << 20

func (b *blocks) pad() error {
	if over := b.size % blockSize; over > 0 {
		_, err := b.Write(b.zeros[over:])
		return err
	}
	return nil
}

type imageFile struct {
	*blocks
	at int64
}

func (f *imageFile) Close() (int64, error) { return f.at, f.pad() }

// seekable adapts a file to the writer of the index.
type seekable struct {
	file     disk.File
	pos, end int64
}

func (s *seekable) Write(p []byte) (int, error) {
	n, err := s.file.WriteAt(p, s.pos)
	s.pos += int64(n)
	s.end = max(s.end, s.pos)
	return n, err
}

func (s *seekable) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.pos
	case io.SeekEnd:
		offset += s.end
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	s.pos = offset
	return offset, nil
}

// indexFS presents a tree as a file system without content to the writer of the index.
type indexFS struct {
	entries  []Entry // sorted
	blocks   int64
	children map[string][]int
}

func newIndexFS(t *Tree, blocks int64) *indexFS {
	f := &indexFS{entries: t.Entries, blocks: blocks, children: map[string][]int{}}
	for i := range t.Entries {
		dir := parentOf(t.Entries[i].Path)
		f.children[dir] = append(f.children[dir], i)
	}
	return f
}

func (f *indexFS) BlockSize() uint32    { return blockSize }
func (f *indexFS) DeviceBlocks() uint64 { return uint64(f.blocks) }

func (f *indexFS) find(name string) (*indexInfo, error) {
	if name == "." {
		return &indexInfo{Entry{Path: ".", Mode: fs.ModeDir | dirMode}}, nil
	}
	i, ok := slices.BinarySearchFunc(f.entries, name, func(e Entry, name string) int { return strings.Compare(e.Path, name) })
	if !ok {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return &indexInfo{f.entries[i]}, nil
}

// Open implements fs.FS. No file can be opened, since the index only refers to the content.
func (f *indexFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// Stat implements fs.StatFS.
func (f *indexFS) Stat(name string) (fs.FileInfo, error) { return f.find(name) }

// ReadDir implements fs.ReadDirFS.
func (f *indexFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == "." {
		name = ""
	}
	entries := make([]fs.DirEntry, 0, len(f.children[name]))
	for _, i := range f.children[name] {
		entries = append(entries, fs.FileInfoToDirEntry(&indexInfo{f.entries[i]}))
	}
	return entries, nil
}

type indexInfo struct{ entry Entry }

func (i *indexInfo) Name() string       { return path.Base(i.entry.Path) }
func (i *indexInfo) Size() int64        { return i.entry.Size }
func (i *indexInfo) Mode() fs.FileMode  { return i.entry.Mode }
func (i *indexInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (i *indexInfo) IsDir() bool        { return i.entry.Mode.IsDir() }
func (i *indexInfo) Sys() any           { return nil }

// DataRange returns the place of the content.
func (i *indexInfo) DataRange() []erofs.DataRange {
	if i.entry.Size == 0 {
		return nil
	}
	return []erofs.DataRange{{Offset: i.entry.At, Size: i.entry.Size}}
}

// OpenImage opens the two files of an Image as a file system without mounting it.
func OpenImage(index, data *os.File) (fs.FS, error) {
	fsys, err := erofs.Open(index, erofs.WithExtraDevices(data))
	if err != nil {
		return nil, fmt.Errorf("read the image %s: %w", index.Name(), err)
	}
	return fsys, nil
}

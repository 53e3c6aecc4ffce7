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
	// ImageIndex is the file system: names, modes, and where in ImageData the content is. It is what is mounted.
	ImageIndex = "index.erofs"
	// ImageData is the content of all files, each from the start of a block, and the mount's device.
	ImageData = "data"
)

const blockSize = 4096

// Image is a tree as an EROFS file system that the kernel can mount from files, read-only: two inodes whatever the number of names. The
// content is written as it comes, and the index at the end, from what Extract kept. Both are synced when Finish returns.
type Image struct {
	// Files are below the directory in which the two are made.
	Files Files

	data *blocks
}

// Mkdir is Sink. The index is made of the tree.
func (i *Image) Mkdir(string, fs.FileMode) error { return nil }

// Remove is Sink. What was written of a file that a later layer hides stays where nothing points to.
func (i *Image) Remove(string, bool) error { return nil }

// File is Sink.
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

// Close gives up what Finish did not end.
func (i *Image) Close() error {
	if i.data == nil || i.data.closed {
		return nil
	}
	i.data.closed = true
	return i.data.file.Close()
}

// Finish writes the index.
func (i *Image) Finish(t *Tree) error {
	if err := i.begin(); err != nil { // a tree without files has data, too: of one block, since no device may be empty
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
	// Both are on their way before the first sync waits, so that the second finds nothing to do: a journal is written once, not twice.
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

// blocks is the data file: contents one after the other, each from the start of a block.
type blocks struct {
	file disk.File
	out  *bufio.Writer
	size int64
	// begun is how much is on its way to the disk.
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

// writeOutSize is large enough that the disk gets it in one go, and small enough that little is left for the sync at the end.
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

// seekable is a file as the writer of the index wants it.
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

// indexFS is a tree as a file system without content, for the writer of the index.
type indexFS struct {
	entries []Entry // sorted
	blocks  int64
	kids    map[string][]int
}

func newIndexFS(t *Tree, blocks int64) *indexFS {
	f := &indexFS{entries: t.Entries, blocks: blocks, kids: map[string][]int{}}
	for i := range t.Entries {
		dir := parentOf(t.Entries[i].Path)
		f.kids[dir] = append(f.kids[dir], i)
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

// Open is fs.FS. Nothing is opened: the content is where the index says.
func (f *indexFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// Stat is fs.StatFS.
func (f *indexFS) Stat(name string) (fs.FileInfo, error) { return f.find(name) }

// ReadDir is fs.ReadDirFS.
func (f *indexFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == "." {
		name = ""
	}
	kids := make([]fs.DirEntry, 0, len(f.kids[name]))
	for _, i := range f.kids[name] {
		kids = append(kids, fs.FileInfoToDirEntry(&indexInfo{f.entries[i]}))
	}
	return kids, nil
}

type indexInfo struct{ entry Entry }

func (i *indexInfo) Name() string       { return path.Base(i.entry.Path) }
func (i *indexInfo) Size() int64        { return i.entry.Size }
func (i *indexInfo) Mode() fs.FileMode  { return i.entry.Mode }
func (i *indexInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (i *indexInfo) IsDir() bool        { return i.entry.Mode.IsDir() }
func (i *indexInfo) Sys() any           { return nil }

// DataRange says where the content is.
func (i *indexInfo) DataRange() []erofs.DataRange {
	if i.entry.Size == 0 {
		return nil
	}
	return []erofs.DataRange{{Offset: i.entry.At, Size: i.entry.Size}}
}

// OpenImage reads the two files of an Image as a file system, without mounting it.
func OpenImage(index, data *os.File) (fs.FS, error) {
	fsys, err := erofs.Open(index, erofs.WithExtraDevices(data))
	if err != nil {
		return nil, fmt.Errorf("read the image %s: %w", index.Name(), err)
	}
	return fsys, nil
}

// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// files has all operations that change the store's directory, by absolute path as in disk.FS, so that tests can make each of them fail.
type files interface {
	OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error)
	Mkdir(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(name string) error
	// SyncFS makes the whole file system durable that the directory is on.
	SyncFS(name string) error
}

// directory is a store without its limits: its files, their names and their locks.
type directory struct {
	dir  string
	root *os.Root
	fs   files
	// wrap replaces the files of sinks in tests. It is nil otherwise.
	wrap func(rootedFiles) files
}

// layOut makes the directories and makes their names durable, without which a sync of files in them would be worth nothing.
func (s *directory) layOut() error {
	info, err := s.root.Stat(".")
	if err == nil && info.Mode().Perm() != 0o700 {
		err = s.root.Chmod(".", 0o700)
	}
	if err != nil {
		return onDisk(err)
	}
	for _, d := range []string{"blobs", blobsDir, "trees", treesDir, tmpDir, pinsDir, trashDir} {
		if info, err := s.root.Lstat(d); err == nil && info.IsDir() {
			continue // so that a store on a full disk can be opened
		}
		if err := s.fs.Mkdir(s.path(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return onDisk(err)
		}
	}
	return onDisk(errors.Join(s.fs.SyncDir(s.path("blobs")), s.fs.SyncDir(s.path("trees")), s.fs.SyncDir(s.dir)))
}

func (s *directory) statfs() (int64, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// within returns files with names relative to a directory of the store, which they cannot leave.
func (s *directory) within(dir string) (_ relativeFiles, _ *os.Root, closing func(), _ error) {
	root, err := s.root.OpenRoot(dir)
	if err != nil {
		return relativeFiles{}, nil, nil, onDisk(err)
	}
	below := rootedFiles{root: root, dir: s.path(dir), last: &lastDir{}}
	closing = func() {
		below.last.close()
		_ = root.Close()
	}
	if s.wrap != nil {
		return relativeFiles{files: s.wrap(below), dir: below.dir}, root, closing, nil
	}
	return relativeFiles{files: below, dir: below.dir}, root, closing, nil
}

func (s *directory) path(name string) string { return filepath.Join(s.dir, name) }

// rootedFiles implements files below one directory, which no name can leave.
type rootedFiles struct {
	root *os.Root
	dir  string
	// last caches a directory for sinks, which make files one after the other, mostly in the same directory. It may be nil.
	last *lastDir
}

// lastDir keeps the directory of the last opened file open, which saves the lookup. One goroutine uses it.
type lastDir struct {
	name string
	root *os.Root
}

// open returns the directory of a name that is relative to the root, and the last part of the name.
func (l *lastDir) open(root *os.Root, name string) (*os.Root, string, error) {
	at := strings.LastIndexByte(name, '/')
	if at < 0 {
		return root, name, nil
	}
	if l.root == nil || l.name != name[:at] {
		l.close()
		dir, err := root.OpenRoot(name[:at])
		if err != nil {
			return nil, "", err
		}
		l.name, l.root = name[:at], dir
	}
	return l.root, name[at+1:], nil
}

// close closes the directory. It is also called before a removal or rename, after which the name may be another directory's.
func (l *lastDir) close() {
	if l != nil && l.root != nil {
		_ = l.root.Close()
		l.root = nil
	}
}

func (b rootedFiles) rel(name string) string {
	if name == b.dir {
		return "."
	}
	return strings.TrimPrefix(name, b.dir+"/")
}

func (b rootedFiles) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	root, rel := b.root, b.rel(name)
	if b.last != nil {
		var err error
		if root, rel, err = b.last.open(root, rel); err != nil {
			return nil, err
		}
	}
	f, err := root.OpenFile(rel, flag, perm)
	if err != nil {
		return nil, err
	}
	return syncedFile{f}, nil
}

func (b rootedFiles) Mkdir(name string, perm fs.FileMode) error {
	return b.root.Mkdir(b.rel(name), perm)
}

func (b rootedFiles) Rename(from, to string) error {
	b.last.close()
	return b.root.Rename(b.rel(from), b.rel(to))
}

func (b rootedFiles) Remove(name string) error {
	b.last.close()
	return b.root.Remove(b.rel(name))
}

func (b rootedFiles) SyncDir(name string) error {
	return disk.Root{Root: b.root}.SyncDir(b.rel(name))
}

func (b rootedFiles) SyncFS(name string) error {
	d, err := b.root.Open(b.rel(name))
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return &fs.PathError{Op: "syncfs", Path: name, Err: err}
	}
	return nil
}

// relativeFiles implements unpack.Files with names relative to a directory.
type relativeFiles struct {
	files
	dir string
}

func (r relativeFiles) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	return r.files.OpenFile(r.dir+"/"+name, flag, perm)
}

func (r relativeFiles) Mkdir(name string, perm fs.FileMode) error {
	return r.files.Mkdir(r.dir+"/"+name, perm)
}

func (r relativeFiles) Remove(name string) error { return r.files.Remove(r.dir + "/" + name) }

// syncedFile adapts a file to disk.File.
type syncedFile struct{ *os.File }

func (f syncedFile) Datasync() error { return f.Sync() }

// WriteOut implements unpack.WriteOuter.
func (f syncedFile) WriteOut(off, n int64) {
	// The sync at the end reports what failed.
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// ZeroTimes implements unpack.TimeSetter.
func (f syncedFile) ZeroTimes() error {
	if err := unix.Futimes(int(f.Fd()), make([]unix.Timeval, 2)); err != nil {
		return &fs.PathError{Op: "chtimes", Path: f.Name(), Err: err}
	}
	return nil
}

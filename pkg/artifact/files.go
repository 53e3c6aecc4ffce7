// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// files is what the store changes its directory with, by absolute path as in disk.FS, so that tests can make any of it fail.
type files interface {
	OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error)
	Mkdir(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(name string) error
	// SyncFS makes all of the file system durable that the directory is on.
	SyncFS(name string) error
}

// beneath is files below one directory, whatever the names are.
type beneath struct {
	root *os.Root
	dir  string
	// last is set where files are made one after the other, mostly in the directory of the one before.
	last *lastDir
}

// lastDir is the directory in which a file was opened last: it saves the walk there. It is used by one goroutine.
type lastDir struct {
	name string
	root *os.Root
}

// open returns the directory of a name that is relative to the root, and what is left of the name.
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

// close forgets it: also before anything is removed or renamed, for then the name may become another directory's.
func (l *lastDir) close() {
	if l != nil && l.root != nil {
		_ = l.root.Close()
		l.root = nil
	}
}

func (b beneath) rel(name string) string {
	if name == b.dir {
		return "."
	}
	return strings.TrimPrefix(name, b.dir+"/")
}

func (b beneath) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
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
	return written{f}, nil
}

func (b beneath) Mkdir(name string, perm fs.FileMode) error { return b.root.Mkdir(b.rel(name), perm) }

func (b beneath) Rename(from, to string) error {
	b.last.close()
	return b.root.Rename(b.rel(from), b.rel(to))
}

func (b beneath) Remove(name string) error {
	b.last.close()
	return b.root.Remove(b.rel(name))
}

func (b beneath) SyncDir(name string) error {
	d, err := b.root.Open(b.rel(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (b beneath) SyncFS(name string) error {
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

// relative is files with names relative to a directory.
type relative struct {
	files
	dir string
}

func (r relative) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	return r.files.OpenFile(r.dir+"/"+name, flag, perm)
}

func (r relative) Mkdir(name string, perm fs.FileMode) error {
	return r.files.Mkdir(r.dir+"/"+name, perm)
}

func (r relative) Remove(name string) error { return r.files.Remove(r.dir + "/" + name) }

type written struct{ *os.File }

func (w written) Datasync() error { return w.Sync() }

// WriteOut is unpack.WriteOuter.
func (w written) WriteOut(off, n int64) {
	// The sync that counts comes later, and says what failed.
	_ = unix.SyncFileRange(int(w.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// ZeroTimes is unpack.TimeSetter.
func (w written) ZeroTimes() error {
	if err := unix.Futimes(int(w.Fd()), make([]unix.Timeval, 2)); err != nil {
		return &fs.PathError{Op: "chtimes", Path: w.Name(), Err: err}
	}
	return nil
}

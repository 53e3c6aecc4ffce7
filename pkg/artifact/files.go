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
}

func (b beneath) rel(name string) string {
	if name == b.dir {
		return "."
	}
	return strings.TrimPrefix(name, b.dir+"/")
}

func (b beneath) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := b.root.OpenFile(b.rel(name), flag, perm)
	if err != nil {
		return nil, err
	}
	return written{f}, nil
}

func (b beneath) Mkdir(name string, perm fs.FileMode) error { return b.root.Mkdir(b.rel(name), perm) }

func (b beneath) Rename(from, to string) error { return b.root.Rename(b.rel(from), b.rel(to)) }

func (b beneath) Remove(name string) error { return b.root.Remove(b.rel(name)) }

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

// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Files is what the sinks make their files with. Names are relative to the directory that is the sink's own.
type Files interface {
	OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error)
	Mkdir(name string, perm fs.FileMode) error
	Remove(name string) error
}

// Directory is a tree as directories and files. What it makes is not synced: whoever has made all that belongs to the tree syncs the file
// system once, which is far cheaper than each file.
type Directory struct {
	// Files are below the directory, which is there and empty.
	Files Files
	// Times gives a name the time 0, where it is set: no two trees of one image then differ.
	Times func(name string) error
}

// WriteOuter is a file that can begin to write what it has to the disk: n bytes from an offset, all after it where n is 0. It waits for
// nothing and promises nothing, but the sync that comes at the end finds less to do.
type WriteOuter interface {
	WriteOut(off, n int64)
}

func writeOut(f disk.File, off, n int64) {
	if w, ok := f.(WriteOuter); ok {
		w.WriteOut(off, n)
	}
}

const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL | unix.O_NOFOLLOW

// Mkdir is Sink.
func (d *Directory) Mkdir(path string, mode fs.FileMode) error { return d.Files.Mkdir(path, mode) }

// File is Sink.
func (d *Directory) File(path string, mode fs.FileMode) (File, error) {
	f, err := d.Files.OpenFile(path, create, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(mode); err != nil { // whatever the process's umask is
		return nil, errors.Join(err, f.Close())
	}
	return &directoryFile{File: f, path: path, times: d.Times}, nil
}

// Remove is Sink.
func (d *Directory) Remove(path string, _ bool) error { return d.Files.Remove(path) }

// Finish gives the directories the modes and times that they keep.
func (d *Directory) Finish(t *Tree) error {
	for i := range t.Entries {
		e := &t.Entries[i]
		if !e.Mode.IsDir() {
			continue
		}
		f, err := d.Files.OpenFile(e.Path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		err = errors.Join(f.Chmod(e.Mode.Perm()), f.Close())
		if err == nil && d.Times != nil {
			err = d.Times(e.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type directoryFile struct {
	disk.File
	path  string
	times func(string) error
}

// Close is File.
func (f *directoryFile) Close() (int64, error) {
	if f.times == nil {
		return 0, f.File.Close()
	}
	if own, knows := f.File.(TimeSetter); knows {
		return 0, errors.Join(own.ZeroTimes(), f.File.Close())
	}
	err := f.File.Close()
	if err == nil {
		err = f.times(f.path)
	}
	return 0, err
}

// TimeSetter is a file that can give itself the time 0, which takes no walk to its name.
type TimeSetter interface {
	ZeroTimes() error
}

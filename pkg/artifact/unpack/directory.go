// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Files makes the files of a sink. Names are relative to the sink's directory.
type Files interface {
	OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error)
	Mkdir(name string, perm fs.FileMode) error
	Remove(name string) error
}

// Directory is a Sink that makes directories and files. It does not sync them: the caller syncs the file system once, when all that
// belongs to the tree is there, which is far cheaper than a sync of each file.
type Directory struct {
	// Files makes files in the directory, which exists and is empty.
	Files Files
	// Times sets the times of a path to 0, so that two trees of one image are the same. Nil: times are left as they are.
	Times func(name string) error
}

// WriteOuter is a file that can begin to write n bytes from an offset to the disk, or all bytes after it if n is 0. WriteOut does not wait
// and guarantees nothing, but the sync at the end has less to do.
type WriteOuter interface {
	WriteOut(off, n int64)
}

func writeOut(f disk.File, off, n int64) {
	if w, ok := f.(WriteOuter); ok {
		w.WriteOut(off, n)
	}
}

const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL | unix.O_NOFOLLOW

// Mkdir implements Sink.
func (d *Directory) Mkdir(path string, mode fs.FileMode) error { return d.Files.Mkdir(path, mode) }

// File implements Sink.
func (d *Directory) File(path string, mode fs.FileMode) (File, error) {
	f, err := d.Files.OpenFile(path, create, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(mode); err != nil { // the umask does not count
		return nil, errors.Join(err, f.Close())
	}
	return &directoryFile{File: f, path: path, times: d.Times}, nil
}

// Remove implements Sink.
func (d *Directory) Remove(path string, _ bool) error { return d.Files.Remove(path) }

// Finish implements Sink. It sets the modes and times of the directories.
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

// Close implements File.
func (f *directoryFile) Close() (int64, error) {
	if f.times == nil {
		return 0, f.File.Close()
	}
	if setter, ok := f.File.(TimeSetter); ok {
		return 0, errors.Join(setter.ZeroTimes(), f.File.Close())
	}
	err := f.File.Close()
	if err == nil {
		err = f.times(f.path)
	}
	return 0, err
}

// TimeSetter is a file that can set its own times to 0, without a lookup of its path.
type TimeSetter interface {
	ZeroTimes() error
}

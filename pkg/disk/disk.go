// SPDX-License-Identifier: Apache-2.0

// Package disk is the file operations that Fettle's own state is made of, behind one small interface. The plugin gives OS, or a Root where
// names must not lead out of a directory; tests give one that fails, or ends the process, at any operation, and that knows what a power
// loss would leave.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FS changes and reads files by absolute path. Errors are as those of package os.
type FS interface {
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	ReadFile(name string) ([]byte, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	Lstat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	Mkdir(name string, perm fs.FileMode) error
	Symlink(target, name string) error
	Rename(from, to string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
}

// File is an open file that is written.
type File interface {
	Write(p []byte) (int, error)
	// WriteAt writes over what is there. Within the file's length no more than the data has to be made durable.
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	Chmod(mode fs.FileMode) error
	// Sync makes content and metadata durable, Datasync content and length only.
	Sync() error
	Datasync() error
	Close() error
}

// OS is the operating system's file system.
type OS struct{}

// OpenFile is os.OpenFile.
func (OS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	return opened(os.OpenFile(name, flag, perm))
}

// ReadFile is os.ReadFile.
func (OS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// ReadDir is os.ReadDir.
func (OS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

// Lstat is os.Lstat.
func (OS) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Readlink is os.Readlink.
func (OS) Readlink(name string) (string, error) { return os.Readlink(name) }

// Mkdir is os.Mkdir.
func (OS) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// Symlink is os.Symlink.
func (OS) Symlink(target, name string) error { return os.Symlink(target, name) }

// Rename is os.Rename.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove is os.Remove.
func (OS) Remove(name string) error { return os.Remove(name) }

// SyncDir syncs the directory itself.
func (OS) SyncDir(name string) error { return syncOpened(os.Open(name)) }

// Root changes files below an open directory, by names relative to it. Neither a name nor a link leads out of it.
type Root struct{ *os.Root }

// OpenFile is os.Root.OpenFile.
func (r Root) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	return opened(r.Root.OpenFile(name, flag, perm))
}

// SyncDir syncs a directory itself.
func (r Root) SyncDir(name string) error { return syncOpened(r.Open(name)) }

func syncOpened(d *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func opened(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err // not an osFile without a file
	}
	return osFile{f}, nil
}

type osFile struct{ *os.File }

func (f osFile) Datasync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}

// TemporaryPrefix begins the name of every file that a write which was cut off may leave behind.
const TemporaryPrefix = ".tmp-"

// Replacer is what replacing a file takes of an FS.
type Replacer interface {
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(name string) error
}

// Replace makes path hold data, or leaves it as it was: whoever looks sees the old content or the new. It does not sync.
func Replace(fsys Replacer, path string, data []byte, perm fs.FileMode) error {
	return replace(fsys, path, data, perm, false)
}

// ReplaceDurably is Replace with the promise that after a power loss, too, there is the old content or the new, and the new once
// it returned: the file is synced before the rename and the directory after it. After an error of that last sync the new content is
// there to see, and may be gone after a power loss.
func ReplaceDurably(fsys Replacer, path string, data []byte, perm fs.FileMode) error {
	if err := replace(fsys, path, data, perm, true); err != nil {
		return err
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func replace(fsys Replacer, path string, data []byte, perm fs.FileMode, sync bool) (err error) {
	// Two writers of one file must not share a name; nobody gains by guessing it, since an existing file is refused.
	name := fmt.Sprintf("%s%s-%08x", TemporaryPrefix, filepath.Base(path), rand.Uint32()) //nolint:gosec // see above
	tmp := filepath.Join(filepath.Dir(path), name)
	f, err := fsys.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), RemoveIfThere(fsys, tmp))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm) // whatever the process's umask is
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return fsys.Rename(tmp, path)
}

// MkdirAll makes a directory and its parents where they are missing.
func MkdirAll(fsys FS, path string, perm fs.FileMode) error {
	info, err := fsys.Lstat(path)
	if err == nil && info.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := MkdirAll(fsys, parent, perm); err != nil {
			return err
		}
	}
	err = fsys.Mkdir(path, perm)
	if errors.Is(err, fs.ErrExist) {
		// Somebody else was first, or it is a link to a directory, as /var/run is.
		if info, again := fsys.Lstat(path); again == nil && (info.IsDir() || info.Mode()&fs.ModeSymlink != 0) {
			return nil
		}
		return &fs.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
	}
	return err
}

// NoRoom reports whether something failed because a disk is full, a quota is used up, or a directory can hold no more.
func NoRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EMLINK)
}

// RemoveIfThere removes what may be gone already.
func RemoveIfThere(fsys interface{ Remove(name string) error }, path string) error {
	if err := fsys.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

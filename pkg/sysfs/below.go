// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// errOutside is of a name that leads out of the tree.
var errOutside = errors.New("leads outside of the host's tree")

// below opens names below a directory. The kernel walks the whole path (openat2), since a walk of our own costs a system call for each
// directory of each path, at each look at hundreds of devices.
type below struct {
	dir *os.File
}

func openBelow(root string) (below, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return below{}, fmt.Errorf("open host tree: %w", &fs.PathError{Op: "open", Path: root, Err: err})
	}
	return below{os.NewFile(uintptr(fd), root)}, nil
}

func (b below) close() error {
	if err := b.dir.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// open opens a name. Relative links are followed as long as they stay inside.
func (b below) open(name string, flags int) (*os.File, error) {
	fd, err := rootfs.OpenIn(b.dir, name, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	if errors.Is(err, unix.EXDEV) {
		err = errOutside
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// file opens a plain file for reading. Something else in its place neither blocks nor becomes the process's terminal.
func (b below) file(name string) (*os.File, error) {
	return b.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// directory opens a directory for listing.
func (b below) directory(name string) (*os.File, error) {
	return b.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// stat describes what a name leads to, and opens nothing.
func (b below) stat(name string) (fs.FileInfo, error) { return b.look(name, 0) }

// lstat describes a name itself, which may be a link.
func (b below) lstat(name string) (fs.FileInfo, error) { return b.look(name, unix.O_NOFOLLOW) }

func (b below) look(name string, flags int) (fs.FileInfo, error) {
	f, err := b.open(name, unix.O_PATH|flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

func (b below) readlink(name string) (string, error) {
	f, err := b.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer f.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", target)
	if errors.Is(err, unix.ENOENT) {
		err = unix.EINVAL // what the kernel says of no link, but for an empty name
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(target[:n]), nil
}

// tree is a file system of its names.
type tree struct{ below }

var _ fs.ReadLinkFS = tree{}

// Open implements fs.FS.
func (t tree) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := t.file(name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Stat implements fs.StatFS.
func (t tree) Stat(name string) (fs.FileInfo, error) { return t.stat(name) }

// Lstat implements fs.ReadLinkFS.
func (t tree) Lstat(name string) (fs.FileInfo, error) { return t.lstat(name) }

// ReadLink implements fs.ReadLinkFS.
func (t tree) ReadLink(name string) (string, error) { return t.readlink(name) }

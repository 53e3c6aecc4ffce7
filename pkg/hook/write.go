// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// explain adds to an error about the container what to do about it.
func (c *Container) explain(err error) error {
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		hint = "a volume or another mount is in the way, and what is mounted is never changed: mount it at another path of the container"
	case errors.Is(err, unix.EROFS):
		hint = "the root is read-only already when hooks run"
		if c.ReadOnly {
			hint += ", as the container asks for (readOnlyRootFilesystem)"
		}
		hint += ": use a runtime that makes it read-only after the hooks, as runc does, or leave out the libraries and links"
	case errors.Is(err, unix.ELOOP):
		hint = "links of the image go round in a circle: repair the image"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		hint = "the container's root user may not do that: look at the owner and attributes of the path in the image"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		hint = "the node has no space for the container's files"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, hint)
}

// makeDir opens a directory of the container and makes what lacks of the path.
func (c *Container) makeDir(name string) (*os.File, error) {
	d, err := c.root.OpenDir(name)
	if !errors.Is(err, unix.ENOENT) || path.Clean(name) == "/" {
		return d, err
	}
	parent, err := c.makeDir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), path.Base(name), 0o755)
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("%s is a link of the image that leads nowhere, want a directory or nothing: repair the image", c.root.Path(name))
	case err != nil:
		return nil, &os.PathError{Op: "make directory", Path: c.root.Path(name), Err: err}
	}
	return c.root.OpenDir(name)
}

// write puts a file in its place at once, as a new file: a hard link of the old one elsewhere keeps its content, and a link, pipe or
// device in its place is replaced and neither followed nor opened. A file that has this content is left alone.
func (c *Container) write(name string, content []byte) error {
	dir, err := c.makeDir(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	base, mode := path.Base(name), uint32(0o644)
	var old unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), base, &old, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return &os.PathError{Op: "look at", Path: c.root.Path(name), Err: err}
	case old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fmt.Errorf("%s is a directory, want a file or nothing: repair the image", c.root.Path(name))
	case old.Mode&unix.S_IFMT == unix.S_IFREG:
		if has, err := c.root.ReadFile(name, int64(len(content))); err == nil && bytes.Equal(has, content) {
			return nil
		}
		mode = old.Mode&0o777 | 0o444
	}
	return c.replace(dir, base, content, mode, name)
}

// replace writes a temporary file in an open directory and renames it.
func (c *Container) replace(dir *os.File, base string, content []byte, mode uint32, name string) (err error) {
	temporary := temporaryName()
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), temporary, flags, 0o600)
	if err != nil {
		return &os.PathError{Op: "write", Path: c.root.Path(name), Err: err}
	}
	f := os.NewFile(uintptr(fd), c.root.Path(name))
	_, err = f.Write(content)
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), base)
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temporary, 0) // it is not there, or in a container that will not start
		return &os.PathError{Op: "write", Path: c.root.Path(name), Err: err}
	}
	return nil
}

// temporaryName is one that no image has.
func temporaryName() string { return ".fettle-" + rand.Text() }

// exists says whether a program of the container would find a name. What is on another mount is there.
func (c *Container) exists(name string) bool {
	_, err := c.root.Stat(name)
	return err == nil || errors.Is(err, unix.EXDEV)
}

// read reads a file of the container; one that is not there is empty.
func (c *Container) read(name string, limit int64) ([]byte, error) {
	data, err := c.root.ReadFile(name, limit)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, rootfs.ErrTooLarge), errors.Is(err, rootfs.ErrNotRegular):
		return nil, fmt.Errorf("%w, want a text file of at most %d bytes: repair the image", err, limit)
	}
	return data, err
}

// readAt reads a file that a program left in a directory of ours.
func readAt(dir *os.File, name string, limit int64) ([]byte, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, want a file of at most %d: %w", info.Mode(), info.Size(), limit, syscall.EFBIG)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

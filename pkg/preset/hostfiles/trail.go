// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// stamp tells whether what is at a path, which may be a link, is still the same. The zero value stands for nothing there.
type stamp struct {
	device, inode, mount, number uint64
	mode, user, group            uint32
	mtime, ctime, bytes          int64
}

// mark is a stamp of a trail.
type mark struct {
	stamp
	// way says that a path only leads through the directory: what else the directory holds does not matter.
	way bool
}

// holds reports whether a stamp is that of a mark.
func (m mark) holds(now stamp) bool {
	was := m.stamp
	if m.way && now.mode&unix.S_IFMT == unix.S_IFDIR {
		was.mtime, was.ctime, was.bytes = 0, 0, 0
		now.mtime, now.ctime, now.bytes = 0, 0, 0
	}
	return was == now
}

// trail is all that paths below a root lead through and to: directories, links, and what is at their ends. As long as it is current, the
// paths lead to the same. No name in it leads through a link.
type trail map[string]mark

// current reports whether a trail is what the root has. A name costs one system call.
func (t trail) current(root *rootfs.Root) bool {
	for name, m := range t {
		now, err := stampOf(root, name)
		if err != nil || !m.holds(now) {
			return false
		}
	}
	return true
}

// add follows a path and adds what it leads through and to.
func (t trail) add(root *rootfs.Root, name string) error {
	at, left, links := "/", strings.Split(name, "/"), 0
	if _, err := t.mark(root, at); err != nil {
		return err
	}
	for len(left) > 0 {
		next := left[0]
		left = left[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, next)
		m, err := t.mark(root, at)
		if err != nil || m.mode == 0 {
			return err
		}
		if m.mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		if links++; links > maxLinks {
			return &os.PathError{Op: "follow", Path: at, Err: unix.ELOOP}
		}
		target, err := linkTarget(root, at)
		if err != nil {
			return err
		}
		left, at = append(strings.Split(target, "/"), left...), path.Dir(at)
		if path.IsAbs(target) {
			at = "/"
		}
	}
	m, err := t.mark(root, at)
	if err != nil {
		return err
	}
	m.way = false
	t[at] = m
	return nil
}

// mark returns what is at a path, and looks once.
func (t trail) mark(root *rootfs.Root, name string) (mark, error) {
	if m, known := t[name]; known {
		return m, nil
	}
	now, err := stampOf(root, name)
	if err != nil {
		return mark{}, err
	}
	m := mark{stamp: now, way: true}
	t[name] = m
	return m, nil
}

// settled reports whether nothing of a trail changed after a time.
func (t trail) settled(when time.Time) bool {
	for _, m := range t {
		if m.ctime >= when.UnixNano() {
			return false
		}
	}
	return true
}

// stampOf looks at a path without following a link at its end.
func stampOf(root *rootfs.Root, name string) (stamp, error) {
	const want = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID
	var s unix.Statx_t
	err := unix.Statx(int(root.Dir().Fd()), inRoot(name), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, want, &s)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return stamp{}, nil
	case err != nil:
		return stamp{}, &os.PathError{Op: "look at", Path: name, Err: err}
	}
	return stamp{
		device: unix.Mkdev(s.Dev_major, s.Dev_minor), inode: s.Ino, mount: s.Mnt_id, number: unix.Mkdev(s.Rdev_major, s.Rdev_minor),
		mode: uint32(s.Mode), user: s.Uid, group: s.Gid,
		mtime: nanoseconds(s.Mtime), ctime: nanoseconds(s.Ctime), bytes: int64(min(s.Size, 1<<62)),
	}, nil
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*int64(time.Second) + int64(t.Nsec) }

// linkTarget returns what a link leads to.
func linkTarget(root *rootfs.Root, name string) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(root.Dir().Fd()), inRoot(name), buffer)
	if err != nil {
		return "", &os.PathError{Op: "look at", Path: name, Err: err}
	}
	return string(buffer[:n]), nil
}

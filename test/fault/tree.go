// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tree is a directory and all below it, as a value.
type Tree struct {
	base string
	root *node
}

// attributes are what chmod and chown change.
type attributes struct {
	mode     fs.FileMode // with its type
	uid, gid int
}

// node is a file, directory, link or anything else that has a name: what is durable of it and, in a replay, what is not yet.
type node struct {
	attributes
	data   []byte
	target string
	rdev   uint64
	names  map[string]*node // of a directory
	pending
}

// Snapshot reads a directory. It does not follow links.
func Snapshot(base string) (*Tree, error) {
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	root, err := read(base)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	return &Tree{base: base, root: root}, nil
}

func read(path string) (*node, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s has no owner on this platform", path)
	}
	n := &node{attributes: attributes{mode: info.Mode(), uid: int(stat.Uid), gid: int(stat.Gid)}, rdev: stat.Rdev}
	switch info.Mode().Type() {
	case 0:
		n.data, err = os.ReadFile(path)
	case fs.ModeSymlink:
		n.target, err = os.Readlink(path)
	case fs.ModeDir:
		err = n.readDir(path)
	}
	return n, err
}

func (n *node) readDir(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	n.names = make(map[string]*node, len(entries))
	for _, e := range entries {
		if n.names[e.Name()], err = read(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// clone copies what a replay changes. Content is never changed in place.
func (n *node) clone() *node {
	c := *n
	c.pending = pending{}
	c.size = int64(len(n.data))
	if n.mode.IsDir() {
		c.names = make(map[string]*node, len(n.names))
		for name, child := range n.names {
			c.names[name] = child.clone()
		}
		c.live = maps.Clone(c.names)
	}
	return &c
}

// entry is one name of a state. The base itself is ".".
type entry struct {
	attributes
	path   string
	data   []byte
	target string
	rdev   uint64
}

// State is what a power loss may leave.
type State struct {
	// Lost says what did not survive, for failure messages.
	Lost string
	// Sum is equal for equal states, of other replays too, so that a test need not look at one twice.
	Sum [32]byte

	entries []entry
}

// String lists what is there, a line each name.
func (s State) String() string {
	var b strings.Builder
	for i := range s.entries {
		e := &s.entries[i]
		fmt.Fprintf(&b, "%s %s %d:%d", e.path, e.mode, e.uid, e.gid)
		switch e.mode.Type() {
		case 0:
			fmt.Fprintf(&b, " %q", e.data)
		case fs.ModeSymlink:
			fmt.Fprintf(&b, " -> %s", e.target)
		case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
			fmt.Fprintf(&b, " %d", e.rdev)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Materialise makes the state in a directory, which stands for the one of the snapshot. The directory is made if it is missing, and
// must be empty.
func (s State) Materialise(dir string) error {
	present, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("materialise a state: %w", err)
	}
	if len(present) > 0 {
		return fmt.Errorf("materialise a state: %s is not empty", dir)
	}
	for i := range s.entries {
		if err := s.entries[i].make(dir); err != nil {
			return fmt.Errorf("materialise a state: %w", err)
		}
	}
	// From the leaves up, since a mode may forbid to write into a directory.
	for i := range slices.Backward(s.entries) {
		if err := s.entries[i].attribute(dir); err != nil {
			return fmt.Errorf("materialise a state: %w", err)
		}
	}
	return nil
}

func (e *entry) make(dir string) error {
	path := filepath.Join(dir, e.path)
	switch e.mode.Type() {
	case 0:
		return os.WriteFile(path, e.data, 0o600)
	case fs.ModeDir:
		err := os.Mkdir(path, 0o700)
		if e.path == "." && errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	case fs.ModeSymlink:
		return os.Symlink(e.target, path)
	}
	if err := unix.Mknod(path, e.unixType(), int(e.rdev)); err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

func (e *entry) unixType() uint32 {
	switch e.mode.Type() {
	case fs.ModeNamedPipe:
		return unix.S_IFIFO
	case fs.ModeSocket:
		return unix.S_IFSOCK
	case fs.ModeDevice:
		return unix.S_IFBLK
	}
	return unix.S_IFCHR
}

func (e *entry) attribute(dir string) error {
	path := filepath.Join(dir, e.path)
	if e.uid != os.Geteuid() || e.gid != os.Getegid() {
		if err := os.Lchown(path, e.uid, e.gid); err != nil {
			return err
		}
	}
	if e.mode.Type() == fs.ModeSymlink {
		return nil
	}
	return os.Chmod(path, e.mode)
}

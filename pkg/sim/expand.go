// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Options say how Expand writes a machine.
type Options struct {
	// OpenableNodes renumbers the character devices first, see Machine.Openable.
	OpenableNodes bool
	// PlainNodes writes an empty file in place of each character device node, which needs no privilege. Nodes has their numbers.
	PlainNodes bool
}

// Nodes returns the numbers of the character device nodes, by path.
func (m *Machine) Nodes() map[string]Number {
	nodes := map[string]Number{}
	for _, e := range m.Entries {
		if e.Kind == Char {
			nodes[e.Path] = e.Number
		}
	}
	return nodes
}

// Expand writes the tree below dir, which it makes if it is missing. It overwrites nothing: a path that is there already is an
// error. Notes name what could not be made for want of privilege, which is character device nodes when not run as root.
func (m *Machine) Expand(dir string, opts Options) (notes []string, err error) {
	if opts.OpenableNodes {
		if m, err = m.Openable(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory to expand into: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory to expand into: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, e := range linksLast(m.Entries) {
		if e.Kind == Char && opts.PlainNodes {
			e.Kind = File
		}
		note, err := write(root, e)
		if err != nil {
			return notes, fmt.Errorf("expand %s %s: %w", e.Kind, e.Path, err)
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes, nil
}

// linksLast orders the entries so that nothing is ever written through a link of the machine itself.
func linksLast(entries []Entry) []Entry {
	rank := func(e Entry) int {
		if e.Kind == Symlink || e.Kind == Unreadable {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(entries), func(a, b Entry) int { return rank(a) - rank(b) })
}

// write makes one entry.
func write(root *os.Root, e Entry) (note string, err error) {
	if e.Kind == Dir {
		return "", root.MkdirAll(e.Path, 0o755)
	}
	if dir := path.Dir(e.Path); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	switch e.Kind {
	case File:
		return "", writeFile(root, e.Path, e.Data)
	case Symlink:
		return "", root.Symlink(e.Target, e.Path)
	case Unreadable:
		return "", root.Symlink(path.Base(e.Path), e.Path)
	case Char:
		err := makeNode(root, e)
		if errors.Is(err, os.ErrPermission) {
			return fmt.Sprintf("%s: node %s not made: %v; run as root to have it", e.Path, e.Number, err), nil
		}
		return "", err
	case Dir:
	}
	return "", fmt.Errorf("unknown kind %q", e.Kind)
}

func writeFile(root *os.Root, name string, data []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// makeNode makes a character device in an opened directory, so that the path is resolved inside the root only.
func makeNode(root *os.Root, e Entry) (err error) {
	dir, err := root.Open(path.Dir(e.Path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	device := unix.Mkdev(e.Number.Major, e.Number.Minor)
	if err := unix.Mknodat(int(dir.Fd()), path.Base(e.Path), unix.S_IFCHR|0o666, int(device)); err != nil {
		return fmt.Errorf("mknod: %w", err)
	}
	return root.Chmod(e.Path, 0o666) // past the umask, as udev does for accelerators
}

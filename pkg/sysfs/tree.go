// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads the kernel's view of a machine (its sys, proc and dev directories) below one root directory and nothing
// outside it, and is the only package that knows where those directories are. The root is "/" on a host, a mount of it in a
// container, and a plain directory in tests. Reading has no side effects: no device node is ever opened.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tree is a host tree opened for reading. Names are slash-separated and relative to its root. Relative links are followed as
// long as they stay inside; what leads outside is an error. It is safe for concurrent use.
type Tree struct {
	root below
	// nodes are the numbers of plain files that stand for device nodes.
	nodes map[string]Number
}

// Open opens the host tree at root, a directory that contains sys, proc and dev, or some of them.
func Open(root string) (*Tree, error) {
	r, err := openBelow(root)
	if err != nil {
		return nil, err
	}
	return &Tree{root: r}, nil
}

// OpenWithNodes opens a tree in which plain files stand for character device nodes with these numbers: a machine as text that was written
// by a user who may not make nodes. Nothing on a node calls it, where a plain file in the place of a node is a fault.
func OpenWithNodes(root string, nodes map[string]Number) (*Tree, error) {
	t, err := Open(root)
	if err != nil {
		return nil, err
	}
	t.nodes = nodes
	return t, nil
}

// Close releases the root. The tree cannot be used afterwards. To close it again does nothing.
func (t *Tree) Close() error { return t.root.close() }

// FS is the tree for readers that take a file system, such as those of k8s.io/dynamic-resource-allocation.
func (t *Tree) FS() fs.ReadLinkFS { return tree{t.root} }

// Exists reports whether name is there, links followed. What cannot be looked at is not there.
func (t *Tree) Exists(name string) bool {
	_, err := t.root.stat(name)
	return err == nil
}

// Lstat describes name itself, without following it when it is a link.
func (t *Tree) Lstat(name string) (fs.FileInfo, error) {
	info, err := t.root.lstat(name)
	if err != nil {
		return nil, failed("look at", name, err)
	}
	return info, nil
}

// ReadDir lists a directory's names, sorted.
func (t *Tree) ReadDir(name string) ([]string, error) {
	f, err := t.root.directory(name)
	if err != nil {
		return nil, failed("list", name, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, failed("list", name, err)
	}
	slices.Sort(names)
	return names, nil
}

// ReadLink is the target of a link, as it is stored.
func (t *Tree) ReadLink(name string) (string, error) {
	target, err := t.root.readlink(name)
	if err != nil {
		return "", failed("read link", name, err)
	}
	return target, nil
}

// LetGo reports whether a driver does not have a PCI function, or not any more. A tree without any PCI device says nothing.
func (t *Tree) LetGo(function, driver string) bool {
	device := PCIDevice(function)
	has, err := t.LinkBase(path.Join(device, "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return t.Exists(path.Dir(device))
	}
	return err == nil && has != driver
}

// LinkBase is the last element of a link's target. That is how the kernel names relations: the link driver of a device points to
// the directory of its driver, subsystem to its subsystem's, physfn to the physical function's. The target need not exist.
func (t *Tree) LinkBase(name string) (string, error) {
	target, err := t.ReadLink(name)
	if err != nil {
		return "", err
	}
	base := path.Base(target)
	if base == "." || base == ".." || base == "/" {
		return "", fmt.Errorf("read link %s: %w: target %q names nothing", HostPath(name), ErrMalformed, target)
	}
	return base, nil
}

// Rdev is the pair of device numbers of a character device node, which is not opened. A link, a directory or a plain file in its
// place is ErrMalformed.
func (t *Tree) Rdev(name string) (major, minor int64, err error) {
	info, err := t.Lstat(name)
	if err != nil {
		return 0, 0, err
	}
	if n, stands := t.nodes[name]; stands && info.Mode().IsRegular() {
		return n.Major, n.Minor, nil
	}
	major, minor, ok := rdev(info)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, 0, fmt.Errorf("look at %s: %w: %s, want a character device", HostPath(name), ErrMalformed, info.Mode().Type())
	}
	return major, minor, nil
}

// rdev is what the file system stores as the numbers of a node.
func rdev(info fs.FileInfo) (major, minor int64, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)), true
}

// Capacity is the size in bytes of the file system that a directory is on (statfs: blocks times block size).
func (t *Tree) Capacity(name string) (int64, error) {
	f, err := t.root.directory(name)
	if err != nil {
		return 0, failed("measure", name, err)
	}
	defer f.Close()
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return 0, failed("measure", name, err)
	}
	return int64(stat.Blocks) * stat.Bsize, nil
}

// failed says what could not be done to which path of the host. It keeps the cause and drops the path inside it, which is
// relative to a root that the reader does not know.
func failed(verb, name string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("%s %s: %w", verb, HostPath(name), err)
}

// Writer writes attributes of a host tree. It is apart from Tree, so that what only reads cannot have side effects.
type Writer struct {
	root below
}

// OpenWriter opens the host tree at root for writing attributes.
func OpenWriter(root string) (*Writer, error) {
	r, err := openBelow(root)
	if err != nil {
		return nil, err
	}
	return &Writer{root: r}, nil
}

// Close releases the root. To close it again does nothing.
func (w *Writer) Close() error { return w.root.close() }

// WriteAttr writes value to an attribute in one write, which is what the kernel parses. An attribute that is not there is
// fs.ErrNotExist: it is never created, and what it held is not cut off first.
func (w *Writer) WriteAttr(name, value string) error {
	f, err := w.root.open(name, unix.O_WRONLY)
	if err != nil {
		return failed("write", name, err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return failed("write", name, err)
	}
	return nil
}

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

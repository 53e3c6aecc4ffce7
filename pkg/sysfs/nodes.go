// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Number identifies a device node by what it is and its numbers, whatever its name.
type Number struct {
	Block        bool
	Major, Minor int64
}

// String is the kernel's form with the type before it: "c 226:128".
func (n Number) String() string {
	kind := "c"
	if n.Block {
		kind = "b"
	}
	return fmt.Sprintf("%s %d:%d", kind, n.Major, n.Minor)
}

// OpenNodes returns the device nodes that a process has open, sorted (/proc/PID/fd). A process that has ended has none. Looking at another
// user's process needs CAP_SYS_PTRACE.
func (t *Tree) OpenNodes(pid string) ([]Number, error) {
	dir := path.Join(Proc, pid, "fd")
	f, err := t.root.directory(dir)
	if err != nil {
		return nil, unlessEnded(failed("list", dir, err))
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, unlessEnded(failed("list", dir, err))
	}
	var nodes []Number
	for _, name := range names {
		// The entries are links that only the kernel can follow, to files of any mount namespace. So they are looked at, never opened, and
		// no file system is asked: that of a tenant may never answer.
		var stat unix.Statx_t
		err := unix.Statx(int(f.Fd()), name, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stat)
		if err != nil {
			if err = unlessEnded(failed("look at", path.Join(dir, name), err)); err != nil {
				return nil, err
			}
			continue
		}
		if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
			nodes = append(nodes, Number{
				Block: kind == unix.S_IFBLK, Major: int64(stat.Rdev_major), Minor: int64(stat.Rdev_minor),
			})
		}
	}
	slices.SortFunc(nodes, compareNumbers)
	return slices.Compact(nodes), nil
}

// unlessEnded drops the errors of a process, or an open file of it, that is no longer there.
func unlessEnded(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func compareNumbers(a, b Number) int {
	switch {
	case a.Block != b.Block && b.Block:
		return -1
	case a.Block != b.Block:
		return 1
	case a.Major != b.Major:
		return int(a.Major - b.Major)
	}
	return int(a.Minor - b.Minor)
}

// Number returns type and numbers of a device node. A relative link to it is followed.
func (t *Tree) Number(name string) (Number, error) {
	info, err := t.root.stat(name)
	if err != nil {
		return Number{}, failed("look at", name, err)
	}
	major, minor, ok := rdev(info)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return Number{}, fmt.Errorf("look at %s: %w: %s, want a device node", HostPath(name), ErrMalformed, info.Mode().Type())
	}
	return Number{Block: info.Mode()&fs.ModeCharDevice == 0, Major: major, Minor: minor}, nil
}

// Lines calls yield for each line of a text file of any size, until yield returns false. A line is at most 64 KiB. Files of that sort
// are lists that grow with the machine: modules' aliases, mounts.
func (t *Tree) Lines(name string, yield func(line string) bool) error {
	f, err := t.root.file(name)
	if err != nil {
		return failed("read", name, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !yield(lines.Text()) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return failed("read", name, err)
	}
	return nil
}

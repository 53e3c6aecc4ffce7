// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Paths are the files and directories that a program reaches, with what is below them, as this process sees them. Those that it does
// not reach are left out. A program without input reads /dev/null, which is always among them.
type Paths struct {
	// Read may be read, listed and executed. Write may be read and written, and have ioctls, but nothing is made or removed there.
	Read, Write []string
	// Own are directories in which files, directories, pipes and sockets may be made and removed, read and written, and nothing else.
	Own []string
	// Nodes are directories in which character devices may be made, read and written, and have ioctls.
	Nodes []string
}

// Everything lets a program reach all files and change those below some directories. It is for tests of programs, which shells run.
func Everything(own ...string) *Paths {
	return &Paths{Read: []string{"/"}, Write: []string{"/dev"}, Own: own}
}

const (
	toRead  = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	toWrite = toRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// ofFiles are those rights that a rule for a file may have.
	ofFiles = toWrite &^ unix.LANDLOCK_ACCESS_FS_READ_DIR
	// toOwn has no ioctls on device nodes that somebody else put there, and what the program writes it cannot execute. Of sockets those there
	// are the only ones to connect to, where the kernel decides on that.
	toOwn = toWrite&^(unix.LANDLOCK_ACCESS_FS_IOCTL_DEV|unix.LANDLOCK_ACCESS_FS_EXECUTE) |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	toMakeNodes = toWrite&^unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR
)

// rights returns all rights on files that a version of Landlock decides on. Whatever is among them and not given is refused.
func rights(version int) uint64 {
	all := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM)<<1 - 1 // version 1, Linux 5.13
	for _, later := range []struct {
		version int
		right   uint64
	}{
		{2, unix.LANDLOCK_ACCESS_FS_REFER},
		{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{9, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	} {
		if version >= later.version {
			all |= later.right
		}
	}
	return all
}

// Landlock returns the version of Landlock that the kernel has, 0 if it has none.
func Landlock() (int, error) {
	const versionFlag = unix.LANDLOCK_CREATE_RULESET_VERSION
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, versionFlag)
	switch {
	case errno == unix.ENOSYS || errno == unix.EOPNOTSUPP:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("ask for Landlock's version: %w", errno)
	}
	return int(version), nil
}

// rulesOf returns all that a version decides on, and the size of what it knows. Programs get no rule for TCP, so no connection and no port.
// What is scoped is for processes of the same program only: signals, and sockets with abstract names.
func rulesOf(version int) (attr unix.LandlockRulesetAttr, size uintptr) {
	attr.Handled_access_fs, size = rights(version), unsafe.Offsetof(attr.Handled_access_net)
	if version >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size = unsafe.Offsetof(attr.Scoped)
	}
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	}
	return attr, size
}

// enforce has Landlock refuse the calling thread, and what it starts, all other files. Without Landlock in the kernel it does nothing:
// the other limits of a program remain, and the plugin says so (Landlock).
func (p *Paths) enforce() error {
	version, err := Landlock()
	if version == 0 {
		return err
	}
	attr, size := rulesOf(version)
	all := attr.Handled_access_fs
	//nolint:gosec // G103: the package has no call for it
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("make rules on files: %w", errno)
	}
	defer unix.Close(int(rules)) //nolint:errcheck // nothing was written
	for _, rule := range []struct {
		paths []string
		right uint64
	}{
		{p.Read, toRead}, {append([]string{"/dev/null"}, p.Write...), toWrite}, {p.Own, toOwn}, {p.Nodes, toMakeNodes},
	} {
		for _, path := range rule.paths {
			if err := allow(int(rules), path, rule.right&all); err != nil && !unreachable(err) {
				return fmt.Errorf("allow %s: %w", path, err)
			}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("enforce rules on files: %w", errno)
	}
	return nil
}

// unreachable reports whether this process does not reach a path, so that a program does not either.
func unreachable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func allow(ruleset int, path string, right uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		right &= ofFiles
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: right, Parent_fd: int32(fd)}
	//nolint:gosec // G103: the package has no call for it
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Paths are the files and directories that a program reaches, with what is below them, as this process sees them. Those that do not exist
// are left out. A program without input reads /dev/null, which is always among them.
type Paths struct {
	// Read may be read, listed and executed. Write may be read and written, and have ioctls, but nothing is made or removed there.
	Read, Write []string
}

const (
	toRead  = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	toWrite = toRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// ofFiles are those rights that a rule for a file may have.
	ofFiles = toWrite &^ unix.LANDLOCK_ACCESS_FS_READ_DIR
)

// rights returns all rights on files that a version of Landlock decides on. Whatever is among them and not given is refused.
func rights(version int) uint64 {
	all := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM)<<1 - 1 // version 1, Linux 5.13
	for _, later := range []struct {
		version int
		right   uint64
	}{{2, unix.LANDLOCK_ACCESS_FS_REFER}, {3, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}} {
		if version >= later.version {
			all |= later.right
		}
	}
	return all
}

// enforce has Landlock refuse the calling thread, and what it starts, all other files. Without Landlock in the kernel it does nothing:
// the other limits of a program remain.
func (p *Paths) enforce() error {
	const versionFlag = unix.LANDLOCK_CREATE_RULESET_VERSION
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, versionFlag)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("ask for Landlock's version: %w", errno)
	}
	all := rights(int(version))
	attr := unix.LandlockRulesetAttr{Handled_access_fs: all}
	const size = unsafe.Sizeof(attr.Handled_access_fs) // what every version knows
	//nolint:gosec // G103: the package has no call for it
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("make rules on files: %w", errno)
	}
	defer unix.Close(int(ruleset)) //nolint:errcheck // nothing was written
	for _, rule := range []struct {
		paths []string
		right uint64
	}{{append([]string{"/dev/null"}, p.Read...), toRead & all}, {p.Write, toWrite & all}} {
		for _, path := range rule.paths {
			if err := allow(int(ruleset), path, rule.right); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("allow %s: %w", path, err)
			}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0); errno != 0 {
		return fmt.Errorf("enforce rules on files: %w", errno)
	}
	return nil
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

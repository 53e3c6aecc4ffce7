// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of the confined program.
const (
	maxCPUSeconds = 60
	maxFiles      = 256
)

// Become turns this process into the host's ldconfig: chrooted to a read-only view of the container, with no capability, no environment
// and no file open but its output, working in a directory in memory. It returns only with an error.
func Become() error {
	// Capabilities belong to the thread, which the new program takes over.
	runtime.LockOSThread()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"enter the container's root", enter},
		{"set limits", limit},
		{"drop capabilities", dropCapabilities},
		{"close files", func() error { return unix.CloseRange(rootFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) }},
		{"execute it", execute},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("confine the host's ldconfig: %s: %w", step.what, err)
		}
	}
	return nil
}

// enter makes the view the root. The working directory is outside of it: it has no parent and holds nothing but the two files, and
// the program reaches it by no absolute path.
func enter() error {
	if err := unix.Fchdir(rootFD); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Fchdir(workFD)
}

func limit() error {
	unix.Umask(0o077)
	for resource, most := range map[int]uint64{
		unix.RLIMIT_CPU: maxCPUSeconds, unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: maxCache, unix.RLIMIT_NOFILE: maxFiles,
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return err
		}
		most = min(most, now.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

// dropCapabilities leaves none, and no way to get any: the bounding set first, since that needs one itself. What the program has to
// do is to read files of root and of everyone, and to write in a directory of its own.
func dropCapabilities() error {
	for capability := uintptr(0); capability <= 63; capability++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // beyond the last that this kernel knows
		}
		if err != nil {
			return err
		}
	}
	const locked = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7 // noroot, no setuid fixup, no ambient, and their locks
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, locked, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// execute replaces the process by the sealed copy: -X makes no links, -i trusts no list of the image.
func execute() error {
	args, err := syscall.SlicePtrFromStrings([]string{"ldconfig", "-X", "-i", "-f", confName, "-C", cacheName})
	if err != nil {
		return err
	}
	var environment [1]*byte
	empty := [1]byte{}
	//nolint:gosec // G103: the package has no call that executes a descriptor
	_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, programFD, uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&environment[0])), unix.AT_EMPTY_PATH, 0)
	return errno
}

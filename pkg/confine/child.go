// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Child is what a program that the plugin starts may do: reach some files as a user without rights, root by name only. It has no sockets,
// sends no signals to others, and changes no file's owner, mode, times or attributes.
type Child struct {
	// Keep are the capabilities that it keeps.
	Keep Capabilities
	// Chroot says that it is started with another root directory. It cannot change it again.
	Chroot bool
	// Memory limits what it may write to, in bytes.
	Memory uint64
	// Paths are the files that it reaches. A program without is not started.
	Paths *Paths
	// Majors are those of the character devices that it may make, if it keeps CAP_MKNOD.
	Majors []uint32
}

// ErrPaths refuses to start a program of which nobody says what files it reaches.
var ErrPaths = errors.New("the files that a program may reach are not limited")

// Setting is what a program of NVIDIA's driver keeps that sets a mode of a GPU which the driver lets only an administrator set.
func Setting() Capabilities { return settingKeeps }

// MakesNodes is what a program keeps that makes device nodes.
func MakesNodes() Capabilities { return nvmlKeeps }

// Start starts a command. An error means that it did not start. The caller limits it then.
func (c Child) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		err := c.ConfineThread()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// ConfineThread ties the calling goroutine to its thread and confines that one, and with it the commands that the goroutine starts. The
// thread ends with the goroutine, so nothing else ever runs on it.
func (c Child) ConfineThread() error {
	if c.Paths == nil {
		return fmt.Errorf("confine a program: %w", ErrPaths)
	}
	runtime.LockOSThread() // never unlocked
	calls := rules{less: fileAttributes(), fewNodes: true, majors: c.Majors}
	var now Capabilities
	if c.Chroot {
		// The filter is there before the root directory is changed. The right to change it goes when the program is executed.
		calls.more, now = []string{"chroot"}, Set(unix.CAP_SYS_CHROOT)
	}
	err := drop(c.Keep, now)
	if err == nil {
		err = c.Paths.enforce()
	}
	if err == nil {
		err = load(calls)
	}
	if err == nil {
		err = pretend(fileModes())
	}
	if err != nil {
		return fmt.Errorf("confine a program: %w", err)
	}
	return nil
}

// Limit sets the limits of a process that was just started.
func (c Child) Limit(pid int) error {
	for resource, most := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_DATA: c.Memory} {
		err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended already
			return fmt.Errorf("limit a program: %w", err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Child is what a program that the plugin starts may do: open files as a user without rights, root by name only. It has no sockets.
type Child struct {
	// Keep are the capabilities that it keeps.
	Keep Capabilities
	// Chroot says that it is started with another root directory. It cannot change it again.
	Chroot bool
	// Memory limits what it may write to, in bytes.
	Memory uint64
	// Paths limits the files that it reaches. If nil, only their owners and modes do.
	Paths *Paths
}

// NVML is what fettle-nvml may do.
func NVML() Child { return Child{Keep: nvmlKeeps, Memory: nvmlMemory} }

// NVMLSetting is what fettle-nvml may do where it sets a mode of a GPU that the driver lets only an administrator set.
func NVMLSetting() Child { return Child{Keep: nvmlKeeps | settingKeeps, Memory: nvmlMemory} }

// Setting is what a tool of NVIDIA's driver keeps that sets a mode of a GPU.
func Setting() Capabilities { return settingKeeps }

const nvmlMemory = 2 << 30

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
	runtime.LockOSThread() // never unlocked
	var more []string
	var now Capabilities
	if c.Chroot {
		// The filter is there before the root directory is changed. The right to change it goes when the program is executed.
		more, now = []string{"chroot"}, Set(unix.CAP_SYS_CHROOT)
	}
	if err := drop(c.Keep, now); err != nil {
		return fmt.Errorf("confine a program: %w", err)
	}
	if c.Paths != nil {
		if err := c.Paths.enforce(); err != nil {
			return fmt.Errorf("confine a program: %w", err)
		}
	}
	if err := load(more, nil); err != nil {
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

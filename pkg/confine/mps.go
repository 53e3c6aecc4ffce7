// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// mpsKeeps is what a control daemon of NVIDIA's MPS keeps: it runs its server as the user of the clients, ends that server, and the library
// makes its device nodes if the driver is loaded later than the container.
const mpsKeeps = Capabilities(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL | 1<<unix.CAP_MKNOD)

// mpsCalls are what a program needs to become another user.
func mpsCalls() []string {
	return []string{"setfsgid", "setfsuid", "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid"}
}

// MPS is what the supervisor of control daemons may do: what they may, and to give them another root directory.
func MPS() Needs {
	return Needs{
		Capabilities: mpsKeeps | Set(unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP),
		SystemCalls:  append(mpsCalls(), "chroot"),
	}
}

// MPSDaemon is what a control daemon may do, and the program that sends it commands.
type MPSDaemon struct {
	// Chroot says that it is started with another root directory.
	Chroot bool
}

// Capabilities are those that it keeps.
func (MPSDaemon) Capabilities() Capabilities { return mpsKeeps }

// Run starts a command and returns when it has ended. started is called when it runs, or with the reason why it does not. The thread that
// starts the command waits for it, since the kernel ends a command that has a Pdeathsig with the thread that started it.
func (d MPSDaemon) Run(cmd *exec.Cmd, started func(error)) error {
	ended := make(chan error)
	go func() {
		err := d.confineThread()
		if err == nil {
			err = cmd.Start()
		}
		started(err)
		if err == nil {
			err = cmd.Wait()
		}
		ended <- err
	}()
	return <-ended
}

// confineThread ties the calling goroutine to its thread and confines that one. The thread ends with the goroutine.
func (d MPSDaemon) confineThread() error {
	runtime.LockOSThread() // never unlocked
	more, now := mpsCalls(), Capabilities(0)
	if d.Chroot {
		more, now = append(more, "chroot"), Set(unix.CAP_SYS_CHROOT)
	}
	if err := drop(mpsKeeps, now); err != nil {
		return fmt.Errorf("confine an MPS daemon: %w", err)
	}
	if err := load(more, []uint64{unix.AF_UNIX}); err != nil {
		return fmt.Errorf("confine an MPS daemon: %w", err)
	}
	return nil
}

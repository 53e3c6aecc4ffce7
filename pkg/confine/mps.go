// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// mpsKeeps is what a control daemon of NVIDIA's MPS keeps: it runs its server as the user of the clients, ends that server, and the library
// makes the nodes of capabilities that the host's dev lacks.
const mpsKeeps = Capabilities(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL | 1<<unix.CAP_MKNOD)

// mpsCalls are what a program needs to become another user.
func mpsCalls() []string {
	return []string{"setfsgid", "setfsuid", "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid"}
}

// MPS is what the supervisor of control daemons may do: what they may, to give them another root directory, and to delete what users of
// containers left in the directories of daemons. It could do that as each of these users anyway.
func MPS() Needs {
	return Needs{
		Capabilities: mpsKeeps | Set(unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER),
		SystemCalls:  append(mpsCalls(), "chroot"),
	}
}

// MPSDaemon is what a control daemon may do, and the program that sends it commands.
type MPSDaemon struct {
	// Chroot says that it is started with another root directory.
	Chroot bool
	// Paths are the files that it reaches. A daemon without is not started.
	Paths *Paths
	// Majors are those of the character devices that it may make.
	Majors []uint32
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
	if d.Paths == nil {
		return fmt.Errorf("confine an MPS daemon: %w", ErrPaths)
	}
	runtime.LockOSThread() // never unlocked
	calls := rules{more: mpsCalls(), less: fileAttributes(), sockets: []uint64{unix.AF_UNIX}, fewNodes: true, majors: d.Majors}
	now := Capabilities(0)
	if d.Chroot {
		calls.more, now = append(calls.more, "chroot"), Set(unix.CAP_SYS_CHROOT)
	}
	err := drop(mpsKeeps, now)
	if err == nil {
		err = d.Paths.enforce()
	}
	if err == nil {
		err = load(calls)
	}
	if err != nil {
		return fmt.Errorf("confine an MPS daemon: %w", err)
	}
	return nil
}

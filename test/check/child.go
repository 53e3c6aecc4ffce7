// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os/exec"
	"runtime"
)

// StartChild starts a command that the kernel ends with its parent (Pdeathsig). It keeps the thread that starts it until it has ended: the
// kernel takes the death of that thread for the death of the parent, and threads that others lock end. ended gets what Wait returns.
func StartChild(command *exec.Cmd) (ended <-chan error, err error) {
	started, waited := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		if started <- err; err == nil {
			waited <- command.Wait()
		}
	}()
	return waited, <-started
}

// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// Marker is the environment variable that tells the program that it was executed by Become. It counts for nothing else: Become looks at
// what the process really has.
const Marker = "CONFINED"

// ErrRights says that a process has rights that it should have given up.
var ErrRights = errors.New("this process has rights that it should have given up")

// Become leaves the process what it needs. The first time, it confines a thread and executes the program on it, with the same arguments;
// it then returns only with an error. The second time it checks that nothing more is left, and returns. It is called before the process
// reads anything that others wrote. marker is the value of Marker in the environment.
func Become(n Needs, marker string) error {
	if marker != "" {
		return check(n)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := drop(n.Capabilities, 0); err != nil {
		return fmt.Errorf("confine this process: %w", err)
	}
	if err := load(rules{more: n.SystemCalls, sockets: families()}); err != nil {
		return fmt.Errorf("confine this process: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("confine this process: %w", err)
	}
	err = syscall.Exec(program, os.Args, append(os.Environ(), Marker+"=1")) //nolint:gosec // G204: this program itself
	return fmt.Errorf("confine this process: execute %s again: %w", program, err)
}

// check fails if the process can do more than it needs, and removes the marker from what its children get.
func check(n Needs) error {
	s, err := ReadState()
	if err != nil {
		return err
	}
	if !n.Capabilities.Has(s.Permitted|s.Effective|s.Inheritable|s.Ambient) || !s.NoNewPrivileges || s.Seccomp != seccompFilter {
		return fmt.Errorf("%w: capabilities %v, want %v; no_new_privs %t; seccomp %d: see that the container's environment has no %s",
			ErrRights, s.Permitted.Names(), n.Capabilities.Names(), s.NoNewPrivileges, s.Seccomp, Marker)
	}
	return os.Unsetenv(Marker)
}

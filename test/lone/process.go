// SPDX-License-Identifier: Apache-2.0

package lone

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// Process is a child and what it said.
type Process struct {
	// Begin is when it was started, Output what it has said since.
	Begin   time.Time
	Output  check.Buffer
	command *exec.Cmd
	ended   chan struct{}
	err     error
}

// tail is the end of what it said, for an error.
func (p *Process) tail() string {
	const most = 4 << 10
	text := p.Output.String()
	return text[max(0, len(text)-most):]
}

// Start runs a program until Stop, whatever becomes of a context: it is stopped in order. Unshare is the namespaces (CLONE_NEW...) that
// it has of its own.
func Start(unshare uintptr, path string, args ...string) (*Process, error) {
	command := exec.Command(path, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unshare, Pdeathsig: syscall.SIGKILL}
	p := &Process{command: command, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.Output, &p.Output
	// The plugin refuses a FETTLE_ variable that it does not know, and make exports some.
	p.command.Env = []string{"PATH=" + os.Getenv("PATH")}
	p.Begin = time.Now()
	ended, err := check.StartChild(command)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	go func() {
		p.err = <-ended
		close(p.ended)
	}()
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.command.Process.Pid }

// Running is an error with what the process said last where it has ended.
func (p *Process) Running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended (%w):\n%s", p.command.Path, errors.Join(p.err, os.ErrProcessDone), p.tail())
	default:
		return nil
	}
}

// Stop asks the process to end, and kills it where it does not.
func (p *Process) Stop() error {
	const grace = 20 * time.Second
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w\n%s", p.command.Path, p.err, p.tail())
		}
		return nil
	case <-time.After(grace):
	}
	err := p.command.Process.Kill()
	<-p.ended
	return errors.Join(err, fmt.Errorf("%s was still there %s after SIGTERM\n%s", p.command.Path, grace, p.tail()))
}

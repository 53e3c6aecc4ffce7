// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// process is a child and what it said.
type process struct {
	command *exec.Cmd
	begin   time.Time
	output  check.Buffer
	ended   chan struct{}
	err     error
}

// tail is the end of what it said, for an error.
func (p *process) tail() string {
	const most = 4 << 10
	text := p.output.String()
	return text[max(0, len(text)-most):]
}

// startProcess runs a program until stop, whatever becomes of a context: it is stopped in order. unshare is the namespaces that it
// has of its own.
func startProcess(unshare uintptr, path string, args ...string) (*process, error) {
	command := exec.Command(path, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unshare, Pdeathsig: syscall.SIGKILL}
	return startCommand(command)
}

// startCommand starts a child and keeps what it says.
func startCommand(command *exec.Cmd) (*process, error) {
	p := &process{command: command, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.output, &p.output
	// The plugin refuses a FETTLE_ variable that it does not know, and make exports some.
	p.command.Env = []string{"PATH=" + os.Getenv("PATH")}
	p.begin = time.Now()
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.command.Process.Pid }

// running is an error with what the process said last where it has ended.
func (p *process) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended (%w):\n%s", p.command.Path, errors.Join(p.err, os.ErrProcessDone), p.tail())
	default:
		return nil
	}
}

// stop asks the process to end, and kills it where it does not.
func (p *process) stop() error {
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

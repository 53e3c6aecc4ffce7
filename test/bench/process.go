// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a child and what it said.
type process struct {
	command *exec.Cmd
	begin   time.Time
	output  output
	ended   chan struct{}
	err     error
}

// output keeps what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

// tail is the end of it, for an error.
func (o *output) tail() string {
	const most = 4 << 10
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.Bytes()
	return string(text[max(0, len(text)-most):])
}

// serving is the address at which the process says that it serves something, "" as long as it does not.
func (o *output) serving(what string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, after, _ := strings.Cut(o.text.String(), fmt.Sprintf(`"Serving" what=%q address="`, what))
	address, _, ended := strings.Cut(after, `"`)
	if !ended {
		return ""
	}
	return address
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
		return fmt.Errorf("%s has ended (%w):\n%s", p.command.Path, errors.Join(p.err, os.ErrProcessDone), p.output.tail())
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
			return fmt.Errorf("%s: %w\n%s", p.command.Path, p.err, p.output.tail())
		}
		return nil
	case <-time.After(grace):
	}
	err := p.command.Process.Kill()
	<-p.ended
	return errors.Join(err, fmt.Errorf("%s was still there %s after SIGTERM\n%s", p.command.Path, grace, p.output.tail()))
}

// SPDX-License-Identifier: Apache-2.0

// Package plugintest runs a kubelet plugin's program as a node does, for tests of the conformance tool: one process after the other, ended
// well and by force, with commands that the tool calls to restart the plugin and to reboot its node.
package plugintest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Program says how a plugin is run.
type Program struct {
	// Log is the file into which all processes print.
	Log string
	// Command makes the n-th process, counted from 1.
	Command func(n int) *exec.Cmd
	// Reboot does to the node's files what a reboot does.
	Reboot func() error
	// AnyStatus says that a process that is asked to end may end with any status.
	AnyStatus bool
}

// Plugin is a program that runs as one process after the other.
type Plugin struct {
	t       testing.TB
	program Program

	mu      sync.Mutex
	starts  int
	process *exec.Cmd
	exited  chan error
}

// Start starts the first process. When the test ends, the last one is asked to end, and if the test failed, the log is printed.
func Start(t testing.TB, program Program) *Plugin {
	t.Helper()
	p := &Plugin{t: t, program: program}
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(program.Log)
			t.Logf("the plugin's log (%v):\n%s", err, text)
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err := p.end(syscall.SIGTERM); err != nil {
			t.Errorf("stop the plugin: %v", err)
		}
	})
	return p
}

// run starts a process.
func (p *Plugin) run() error {
	log, err := os.OpenFile(p.program.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.starts++
	p.process = p.program.Command(p.starts)
	p.process.Stdout, p.process.Stderr = log, log
	if err := p.process.Start(); err != nil {
		return err
	}
	process, exited := p.process, make(chan error, 1)
	go func() { exited <- process.Wait() }()
	p.exited = exited
	return nil
}

// end sends a signal and waits. A process that is killed has no chance to end well.
func (p *Plugin) end(signal syscall.Signal) error {
	const limit = 30 * time.Second
	if err := p.process.Process.Signal(signal); err != nil {
		return err
	}
	select {
	case err := <-p.exited:
		if signal == syscall.SIGKILL || p.program.AnyStatus {
			return nil
		}
		return err
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("the plugin still runs %s after %s", limit, signal), p.process.Process.Kill())
	}
}

// again does what a command asks for. Every second process ends without warning, as a reboot always does.
func (p *Plugin) again(verb string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch verb {
	case "restart":
		signal := syscall.SIGTERM
		if p.starts%2 == 0 {
			signal = syscall.SIGKILL
		}
		return errors.Join(p.end(signal), p.run())
	case "reboot":
		return errors.Join(p.end(syscall.SIGKILL), p.program.Reboot(), p.run())
	}
	return fmt.Errorf("unknown verb %q", verb)
}

// Listen serves the tool's commands at a socket and returns the flags that name them. The test's binary is the command, so its TestMain has
// to call Command.
func (p *Plugin) Listen(socket string) []string {
	p.t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			p.answer(connection)
		}
	}()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	return []string{
		"--restart-command=" + strings.Join([]string{self, commandWord, socket, "restart"}, " "),
		"--reboot-command=" + strings.Join([]string{self, commandWord, socket, "reboot"}, " "),
	}
}

// answer serves one command: a line with a verb, answered with nothing or with what went wrong.
func (p *Plugin) answer(connection net.Conn) {
	defer connection.Close() //nolint:errcheck // all was read and written by then
	verb, err := bufio.NewReader(connection).ReadString('\n')
	if err == nil {
		err = p.again(strings.TrimSpace(verb))
	}
	if err != nil {
		fmt.Fprintln(connection, err)
	}
}

// commandWord tells the command from a run of the tests.
const commandWord = "plugin-command"

// Command is the other end, in the process that the tool starts: os.Args is given, and the exit status returned. It is false where the
// arguments are those of a run of tests.
func Command(args []string) (int, bool) {
	if len(args) != 4 || args[1] != commandWord {
		return 0, false
	}
	connection, err := net.Dial("unix", args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	defer connection.Close() //nolint:errcheck // all was read and written by then
	fmt.Fprintln(connection, args[3])
	trouble, err := io.ReadAll(connection)
	if err != nil || len(trouble) > 0 {
		fmt.Fprintln(os.Stderr, string(trouble), err)
		return 1, true
	}
	return 0, true
}

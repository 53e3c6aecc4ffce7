// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fusetree"
)

// startVariable hands a machine to the process that serves it.
const startVariable = "FETTLE_FPGASIM"

// order is what the process is to serve, and where.
type order struct {
	Root    string  `json:"root"`
	Machine Machine `json:"machine"`
}

// Main serves the machine and ends the process, if Start made it. TestMain begins with it.
func Main() {
	text, ok := os.LookupEnv(startVariable)
	if !ok {
		return
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = Serve(o.Root, o.Machine, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Sim is a machine that another process serves. It is safe for concurrent use.
type Sim struct {
	Machine
	// Root is the host tree.
	Root string

	t        testing.TB
	mu       sync.Mutex
	commands *json.Encoder
	answers  *json.Decoder
}

// Need skips the test where no FUSE file system can be mounted, or fails it where CI says that it must be possible.
func Need(t testing.TB) { t.Helper(); fusetree.Need(t) }

// Start serves a machine until the test ends. The test binary's TestMain must call Main.
func Start(t testing.TB, m Machine) *Sim {
	t.Helper()
	Need(t)
	root := filepath.Join(t.TempDir(), "host")
	check.Must(t, os.Mkdir(root, 0o755))
	return StartAt(t, m, root)
}

// StartAt is Start with the mount over a directory that is there, such as the sys of a tree of which m is FromTree's.
func StartAt(t testing.TB, m Machine, root string) *Sim {
	t.Helper()
	Need(t)
	text, err := json.Marshal(order{root, m})
	check.Must(t, err)
	exe, err := os.Executable()
	check.Must(t, err)
	command := exec.Command(exe, "-test.run=^$")
	// The race detector of a process that is about to end would wait a second for reports.
	command.Env = append(os.Environ(), startVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	return Attach(t, command, m, root)
}

// Attach starts a command that serves a machine at root, such as that of cmd, and ends it with the test.
func Attach(t testing.TB, command *exec.Cmd, m Machine, root string) *Sim {
	t.Helper()
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // An interrupt ends the test, which then ends this in order.
	in, err := command.StdinPipe()
	check.Must(t, err)
	out, err := command.StdoutPipe()
	check.Must(t, err)
	check.Must(t, command.Start())
	t.Cleanup(func() { stop(t, command, in, root) })
	s := &Sim{Machine: m, Root: root, t: t, commands: json.NewEncoder(in), answers: json.NewDecoder(out)}
	var ready Answer
	if err := s.answers.Decode(&ready); err != nil {
		t.Fatalf("the simulated machine did not start: %v", err)
	}
	return s
}

// stop waits for the process, which unmounts. A mount that is still in use is detached, so that the test's directory can be removed.
func stop(t testing.TB, command *exec.Cmd, in io.Closer, root string) {
	t.Helper()
	err := in.Close()
	timer := time.AfterFunc(2*time.Minute, func() { _ = command.Process.Kill() })
	defer timer.Stop()
	if err := errors.Join(err, command.Wait()); err != nil {
		t.Errorf("the simulated machine ended badly: %v", err)
		_ = unix.Unmount(root, unix.MNT_DETACH)
	}
}

// do gives one command and returns the answer.
func (s *Sim) do(c Command) Answer {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var a Answer
	if err := errors.Join(s.commands.Encode(c), s.answers.Decode(&a)); err != nil {
		s.t.Fatalf("the simulated machine does not answer: %v", err)
	}
	if a.Error != "" {
		s.t.Fatalf("the simulated machine refuses: %s", a.Error)
	}
	return a
}

// Fault adds a fault.
func (s *Sim) Fault(f Fault) { s.t.Helper(); s.do(Command{Fault: &f}) }

// Set changes a port.
func (s *Sim) Set(change Set) { s.t.Helper(); s.do(Command{Set: &change}) }

// Go ends all that is held.
func (s *Sim) Go() { s.t.Helper(); s.do(Command{Go: true}) }

// Trace is all that was asked of the machine.
func (s *Sim) Trace() []Event { s.t.Helper(); return s.do(Command{Trace: true}).Trace }

// Await polls the trace until it has n events that match.
func (s *Sim) Await(n int, match func(Event) bool) {
	s.t.Helper()
	var trace []Event
	came := false
	defer func() {
		if !came {
			s.t.Logf("the trace is\n%v", trace)
		}
	}()
	check.Eventually(s.t, fmt.Sprintf("%d events", n), func() bool {
		found := 0
		trace = s.Trace()
		for _, e := range trace {
			if match(e) {
				found++
			}
		}
		came = found >= n
		return came
	})
}

// SPDX-License-Identifier: Apache-2.0

package pcisim

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

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fusetree"
)

// programVariable says where the program is that serves machines. A child that a test kills is given its parent's.
const programVariable = "FETTLE_TEST_PCISIM"

// order is what the program is to serve, and where.
type order struct {
	Root    string  `json:"root"`
	Machine Machine `json:"machine"`
}

// Run builds the program that serves machines, runs the tests of a package and returns their status. TestMain ends with it. A test's own
// binary could serve them too, but with the race detector it would be several times slower.
func Run(m *testing.M) int {
	if os.Getenv(programVariable) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "pcisim-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	program := filepath.Join(dir, "pcisim")
	build := exec.Command("go", "build", "-o", program, "github.com/fettle-dev/fettle/test/pcisim/cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build the simulator: %v\n%s", err, output))
	}
	if err := os.Setenv(programVariable, program); err != nil {
		panic(err)
	}
	return m.Run()
}

// ServeOrder serves the machine that Start wrote to a file, until the end of in.
func ServeOrder(file string, in io.Reader, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("read the machine %s: %w", file, err)
	}
	return Serve(o.Root, o.Machine, in, out)
}

// Sim is a machine that another process serves. It is safe for concurrent use.
type Sim struct {
	// Root is the host tree.
	Root string

	t        testing.TB
	mu       sync.Mutex
	commands *json.Encoder
	answers  *json.Decoder
	end      func()
}

// Start expands a host tree and serves its sys until the test ends. TestMain must end with Run. change, unless it is nil, changes
// the machine first.
func Start(t testing.TB, host *sim.Machine, change func(*Machine)) *Sim {
	t.Helper()
	fusetree.Need(t)
	root := filepath.Join(t.TempDir(), "host")
	_, err := host.Expand(root, sim.Options{})
	check.Must(t, err)
	check.Must(t, os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	m, err := FromTree(host)
	check.Must(t, err)
	m.Dev = filepath.Join(root, "dev")
	if change != nil {
		change(&m)
	}
	return StartAt(t, m, root)
}

// StartAt serves a machine over the sys of a host tree that is there.
func StartAt(t testing.TB, m Machine, root string) *Sim {
	t.Helper()
	text, err := json.Marshal(order{filepath.Join(root, "sys"), m})
	check.Must(t, err)
	file := filepath.Join(t.TempDir(), "machine.json")
	check.Must(t, os.WriteFile(file, text, 0o600))
	program := os.Getenv(programVariable)
	if program == "" {
		t.Fatal("there is no program that serves machines: end TestMain with pcisim.Run")
	}
	command := exec.Command(program, "-order", file)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // An interrupt ends the test, which then ends this in order.
	in, err := command.StdinPipe()
	check.Must(t, err)
	out, err := command.StdoutPipe()
	check.Must(t, err)
	check.Must(t, command.Start())
	s := &Sim{Root: root, t: t, commands: json.NewEncoder(in), answers: json.NewDecoder(out)}
	s.end = sync.OnceFunc(func() { stop(t, command, in, filepath.Join(root, "sys")) })
	t.Cleanup(s.end)
	var ready Answer
	if err := s.answers.Decode(&ready); err != nil {
		t.Fatalf("the simulated machine did not start: %v", err)
	}
	return s
}

// Reboot serves the machine anew, as it was at first. The node's other files stay.
func (s *Sim) Reboot(m Machine) *Sim {
	s.t.Helper()
	s.end()
	check.Must(s.t, os.RemoveAll(filepath.Join(m.Dev, "vfio")))
	return StartAt(s.t, m, s.Root)
}

// stop waits for the process, which unmounts. A mount that is still in use is detached, so that the test's directory can be removed.
func stop(t testing.TB, command *exec.Cmd, in io.Closer, root string) {
	t.Helper()
	err := in.Close()
	// SIGQUIT has the process print what it waits for.
	timer := time.AfterFunc(30*time.Second, func() { _ = command.Process.Signal(syscall.SIGQUIT) })
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

// Set changes a function.
func (s *Sim) Set(change Set) { s.t.Helper(); s.do(Command{Set: &change}) }

// Go ends all that is held.
func (s *Sim) Go() { s.t.Helper(); s.do(Command{Go: true}) }

// Held is how many writes wait for Go.
func (s *Sim) Held() int { s.t.Helper(); return s.do(Command{Trace: true}).Held }

// Trace is all that was written.
func (s *Sim) Trace() []Event { s.t.Helper(); return s.do(Command{Trace: true}).Trace }

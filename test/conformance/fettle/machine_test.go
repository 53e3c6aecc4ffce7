// SPDX-License-Identifier: Apache-2.0

package fettle

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/apitest"
)

// machine is a simulated node on which the plugin runs, one process after the other.
type machine struct {
	t                            *testing.T
	binary, kubeconfig           string
	host, plugins, registry, cdi string
	state, log                   string

	mu sync.Mutex
	// boots and starts count reboots and processes; each process is a pod of its own, so that its sockets have other names.
	boots, starts int
	process       *exec.Cmd
	exited        chan error
}

func newMachine(t *testing.T, dir, binary, kubeconfig string) *machine {
	t.Helper()
	m := &machine{
		t: t, binary: binary, kubeconfig: kubeconfig, host: filepath.Join(dir, "host"), plugins: filepath.Join(dir, "p"),
		registry: filepath.Join(dir, "r"), cdi: filepath.Join(dir, "cdi"), state: filepath.Join(dir, "state"), log: filepath.Join(dir, "log"),
	}
	text, err := os.ReadFile(filepath.Join(repository, "test", "machines", "8xh100-sxm.txtar"))
	must(t, err)
	parsed, err := sim.Parse(text)
	must(t, err)
	_, err = parsed.Expand(m.host, sim.Options{})
	must(t, err)
	must(t, m.boot())
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(m.log)
			t.Logf("the plugin's log (%v):\n%s", err, text)
		}
	})
	return m
}

// boot gives the machine a new boot id and empties what does not outlive a reboot. The sockets of the dead do: they are on disk.
func (m *machine) boot() error {
	m.boots++
	id := filepath.Join(m.host, "proc", "sys", "kernel", "random", "boot_id")
	return errors.Join(
		os.RemoveAll(m.cdi), os.MkdirAll(filepath.Dir(id), 0o755), os.MkdirAll(m.registry, 0o755),
		os.WriteFile(id, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", m.boots), 0o644),
	)
}

func (m *machine) start() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	must(m.t, m.run())
}

// run starts a process.
func (m *machine) run() error {
	m.starts++
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	m.process = exec.Command(m.binary, "--kubeconfig="+m.kubeconfig, "--node-name="+nodeName, "--namespace=default",
		fmt.Sprintf("--pod-uid=pod-%d", m.starts), "--host-root="+m.host, "--kubelet-plugins-dir="+m.plugins,
		"--kubelet-registry-dir="+m.registry, "--cdi-root="+m.cdi, "--state-dir="+m.state, "--nvml-command=",
		fmt.Sprintf("--http-address=127.0.0.1:%d", apitest.FreePort(m.t)), fmt.Sprintf("--health-port=%d", apitest.FreePort(m.t)))
	m.process.Env = []string{} // what make exports for tests names no flag of the plugin
	m.process.Stdout, m.process.Stderr = log, log
	if err := m.process.Start(); err != nil {
		return err
	}
	m.exited = make(chan error, 1)
	go func() { m.exited <- m.process.Wait() }()
	return nil
}

func (m *machine) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.end(syscall.SIGTERM); err != nil {
		m.t.Errorf("stop the plugin: %v", err)
	}
}

// end sends a signal and waits. A process that is killed has no chance to end well.
func (m *machine) end(signal syscall.Signal) error {
	const limit = 30 * time.Second
	if err := m.process.Process.Signal(signal); err != nil {
		return err
	}
	select {
	case err := <-m.exited:
		if signal == syscall.SIGKILL {
			return nil
		}
		return err
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("the plugin still runs %s after %s", limit, signal), m.process.Process.Kill())
	}
}

// again does what a hook asks for. Every second process ends without warning, as a reboot always does.
func (m *machine) again(verb string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch verb {
	case "restart":
		signal := syscall.SIGTERM
		if m.starts%2 == 0 {
			signal = syscall.SIGKILL
		}
		return errors.Join(m.end(signal), m.run())
	case "reboot":
		return errors.Join(m.end(syscall.SIGKILL), m.boot(), m.run())
	}
	return fmt.Errorf("unknown verb %q", verb)
}

// serveHooks listens for the tool's commands and returns the socket.
func (m *machine) serveHooks() string {
	m.t.Helper()
	socket := filepath.Join(filepath.Dir(m.registry), "control.sock")
	listener, err := net.Listen("unix", socket)
	must(m.t, err)
	m.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			m.answer(connection)
		}
	}()
	return socket
}

// answer serves one command: a line with a verb, answered with nothing or with what went wrong.
func (m *machine) answer(connection net.Conn) {
	defer connection.Close() //nolint:errcheck // all was read and written by then
	verb, err := bufio.NewReader(connection).ReadString('\n')
	if err == nil {
		err = m.again(strings.TrimSpace(verb))
	}
	if err != nil {
		fmt.Fprintln(connection, err)
	}
}

// askHook is the other end, in the process that the tool starts. It returns the exit status.
func askHook(socket, verb string) int {
	connection, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer connection.Close() //nolint:errcheck // all was read and written by then
	fmt.Fprintln(connection, verb)
	trouble, err := io.ReadAll(connection)
	if err != nil || len(trouble) > 0 {
		fmt.Fprintln(os.Stderr, string(trouble), err)
		return 1
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package fettle

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/conformance/plugintest"
)

// machine is a simulated node on which the plugin runs.
type machine struct {
	binary, kubeconfig           string
	host, plugins, registry, cdi string
	state                        string
	boots                        int
}

func newMachine(t *testing.T, dir, binary, kubeconfig string) *machine {
	t.Helper()
	m := &machine{
		binary: binary, kubeconfig: kubeconfig, host: filepath.Join(dir, "host"), plugins: filepath.Join(dir, "p"),
		registry: filepath.Join(dir, "r"), cdi: filepath.Join(dir, "cdi"), state: filepath.Join(dir, "state"),
	}
	text, err := os.ReadFile(filepath.Join(plugintest.Repository, "test", "machines", "8xh100-sxm.txtar"))
	must(t, err)
	parsed, err := sim.Parse(text)
	must(t, err)
	_, err = parsed.Expand(m.host, sim.Options{})
	must(t, err)
	must(t, m.boot())
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

// command makes a process of the plugin. Each is a pod of its own, so that its sockets have other names.
func (m *machine) command(n int) *exec.Cmd {
	command := exec.Command(m.binary, "--kubeconfig="+m.kubeconfig, "--node-name="+nodeName, "--namespace=default",
		fmt.Sprintf("--pod-uid=pod-%d", n), "--host-root="+m.host, "--kubelet-plugins-dir="+m.plugins,
		"--kubelet-registry-dir="+m.registry, "--cdi-root="+m.cdi, "--state-dir="+m.state, "--nvml-command=",
		"--http-address=127.0.0.1:0", "--health-port=0")
	command.Env = []string{} // what make exports for tests names no flag of the plugin
	return command
}

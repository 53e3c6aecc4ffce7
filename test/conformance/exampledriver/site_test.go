// SPDX-License-Identifier: Apache-2.0

package exampledriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/test/conformance/plugintest"
)

const nodeName = "example"

// exampleDriver returns the path of the driver's kubelet plugin: $EXAMPLE_DRIVER, or what make builds. Without it the test is skipped, or
// fails where CI is "true".
func exampleDriver(t *testing.T) string {
	t.Helper()
	path := os.Getenv("EXAMPLE_DRIVER")
	if path == "" {
		path = filepath.Join(plugintest.Repository, ".cache/tools/dra-example-kubeletplugin")
	}
	path, err := filepath.Abs(path)
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		reason := fmt.Sprintf("%v: make test-api builds the example driver; or name one in $EXAMPLE_DRIVER", err)
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	return path
}

// site is a node on which one installation of the driver runs, and the tool beside it.
type site struct {
	program, tool, kubeconfig string
	driver                    string
	flags                     []string // of the driver

	dir string
	// commands are the tool's flags that restart the driver and reboot its node.
	commands []string
}

func newSite(t *testing.T, s site) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "fcx") //nolint:usetesting // the test's own directory is too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.dir = dir
	must(t, os.Mkdir(s.path("plugins"), 0o755))
	must(t, os.Mkdir(s.path("registry"), 0o755))
	must(t, s.boot())
	// A process that is asked to end while it still starts has status 1.
	p := plugintest.Start(t, plugintest.Program{Log: s.path("log"), Command: s.command, Reboot: s.boot, AnyStatus: true})
	s.commands = p.Listen(s.path("control.sock"))
	return &s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// boot empties what does not outlive a reboot.
func (s *site) boot() error {
	return errors.Join(os.RemoveAll(s.path("cdi")), os.Mkdir(s.path("cdi"), 0o755))
}

// command makes a process of the driver. Each is a pod of its own, so that its sockets have other names.
func (s *site) command(n int) *exec.Cmd {
	args := []string{
		"--kubeconfig=" + s.kubeconfig, "--node-name=" + nodeName, "--driver-name=" + s.driver, "--cdi-root=" + s.path("cdi"),
		"--kubelet-plugins-directory-path=" + s.path("plugins"), "--kubelet-registrar-directory-path=" + s.path("registry"),
		fmt.Sprintf("--pod-uid=pod-%d", n), "--kube-api-qps=200", "--kube-api-burst=400",
	}
	command := exec.Command(s.program, append(args, s.flags...)...)
	command.Env = []string{}
	return command
}

// run runs the tool and reads its report.
func (s *site) run(t *testing.T, flags ...string) (plugintest.Outcome, []plugintest.Case) {
	t.Helper()
	report := s.path("junit.xml")
	args := []string{
		"--kubeconfig=" + s.kubeconfig, "--driver=" + s.driver, "--registration=" + s.path("registry/*-reg.sock"),
		"--cdi-dir=" + s.path("cdi"), "--stable-for=3s", "--patience=10s", "--junit=" + report,
	}
	got := plugintest.RunTool(t, s.tool, append(args, flags...)...)
	return got, plugintest.ReadReport(t, report)
}

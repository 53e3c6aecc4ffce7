// SPDX-License-Identifier: Apache-2.0

// Package fettle runs the conformance checks against Fettle's own kubelet plugin, as it is shipped, on a simulated machine.
package fettle

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/conformance/plugintest"
)

const nodeName = "conformance"

// TestMain lets the test's own binary be the command that restarts and reboots.
func TestMain(m *testing.M) {
	if status, ok := plugintest.Command(os.Args); ok {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// TestAPI wants every check to pass on Fettle.
func TestAPI(t *testing.T) {
	dir, err := os.MkdirTemp("", "fcf") //nolint:usetesting // the test's own directory is too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plugin := plugintest.Build(t, dir, "cmd/fettle-kubeletplugin")
	tool := plugintest.Build(t, dir, "test/conformance/fettle-conformance")
	config := apitest.Start(t, nil)
	crds := filepath.Join(plugintest.Repository, "deployments", "crds")
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{crds}, ErrorIfPathMissing: true})
	must(t, err)
	kube, kubeconfig := plugintest.Cluster(t, dir, nodeName, config)
	m := newMachine(t, dir, plugin, kubeconfig)
	p := plugintest.Start(t, plugintest.Program{Log: filepath.Join(dir, "log"), Command: m.command, Reboot: m.boot})

	report := filepath.Join(dir, "junit.xml")
	registration := "--registration=" + filepath.Join(m.registry, "*-reg.sock")
	args := []string{"--kubeconfig=" + kubeconfig, "--driver=fettle.dev", registration, "--cdi-dir=" + m.cdi, "--stable-for=5s"}
	got := plugintest.RunTool(t, tool, append(append(args, "--junit="+report), p.Listen(filepath.Join(dir, "control.sock"))...)...)
	if got.Status != 0 {
		t.Errorf("the tool's exit status is %d, want 0", got.Status)
	}
	checkReport(t, plugintest.ReadReport(t, report))

	// Another driver at Fettle's sockets must be seen in the exit status too.
	got = plugintest.RunTool(t, tool, "--kubeconfig="+kubeconfig, "--driver=other.example.com", registration, "--focus=^registration/info$",
		"--patience=1s")
	if got.Status != 1 || !strings.Contains(got.Stdout, `name is "fettle.dev"`) {
		t.Errorf("exit status %d, want 1 and the name that is wrong", got.Status)
	}
	// Where most is skipped, nothing is said about the driver.
	got = plugintest.RunTool(t, tool, append(args, "--focus=^(shared|reboot)/|^registration/info$")...)
	if got.Status != 3 || !strings.Contains(got.Stderr, "inconclusive: 5 of 6 checks of driver fettle.dev were skipped") {
		t.Errorf("exit status %d, want 3 for an inconclusive run", got.Status)
	}
	closedPipe(t, tool, args)
	plugintest.WantCleanedUp(t.Context(), t, kube)
}

// closedPipe reads one line of the tool's output and goes away, as head -1 does, while the tool watches the slices.
func closedPipe(t *testing.T, tool string, args []string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), tool, append(args, "--focus=^(slices|prepare)/")...)
	var stderr strings.Builder
	command.Stderr = &stderr
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "PASS") {
		t.Errorf("the first line is %q, %v", line, err)
	}
	must(t, stdout.Close())
	err = command.Wait()
	if code := command.ProcessState.ExitCode(); code != 1 || !strings.Contains(stderr.String(), "broken pipe") {
		t.Errorf("after its reader went away the tool ended with %v, want status 1 and the reason\n%s", err, &stderr)
	}
}

// checkReport wants all checks in the report, and every one passed: whatever a check can need, it was given. Fettle has no device that
// allows several allocations.
func checkReport(t *testing.T, cases []plugintest.Case) {
	t.Helper()
	const least = 40
	if len(cases) < least {
		t.Fatalf("the report has %d checks, want at least %d", len(cases), least)
	}
	for _, c := range cases {
		shared := strings.HasPrefix(c.Name, "shared/")
		switch {
		case c.Failure != nil:
			t.Errorf("%s failed: %s", c.Name, c.Failure.Text)
		case c.Skipped != nil && !shared:
			t.Errorf("%s was skipped: %s", c.Name, c.Skipped.Text)
		case shared && (c.Skipped == nil || !strings.Contains(c.Skipped.Text, "needs 1 free devices that allow several allocations")):
			t.Errorf("%s ended with %+v, want it skipped for want of a device", c.Name, c.Skipped)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

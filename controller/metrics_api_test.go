// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/test/apitest"
)

func (c cluster) testMetrics(t *testing.T) {
	apitest.MetricsAskForTokens(t, c.config, namespace, c.startWebhook(t, "--metrics-authentication=true").metrics)
}

// webhookProcess is a running `fettle-controller webhook`.
type webhookProcess struct {
	port    int
	metrics string
	pid     int
}

// startWebhook builds the program and runs the webhook as a process of its own until the test ends, as the chart does.
func (c cluster) startWebhook(t *testing.T, args ...string) webhookProcess {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "fettle-controller")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/fettle-controller").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	w := webhookProcess{port: apitest.FreePort(t), metrics: fmt.Sprintf("127.0.0.1:%d", apitest.FreePort(t))}
	args = append([]string{
		"webhook", "--namespace=" + namespace, "--kubeconfig=" + c.kubeconfig(t), fmt.Sprintf("--bind-address=:%d", w.port),
		"--metrics-bind-address=" + w.metrics, fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", apitest.FreePort(t)),
	}, args...)
	log := new(bytes.Buffer)
	command := exec.CommandContext(context.Background(), binary, args...) // it ends in the cleanup
	command.Stderr = log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	w.pid = command.Process.Pid
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		err := command.Wait()
		if err != nil || t.Failed() {
			t.Errorf("the webhook ended with %v; its log:\n%s", err, log)
		}
	})
	return w
}

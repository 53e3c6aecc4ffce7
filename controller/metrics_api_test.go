// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/test/apitest"
)

func (c cluster) testMetrics(t *testing.T) {
	apitest.MetricsAskForTokens(t, c.config, namespace, c.startWebhook(t, "--metrics-authentication=true").metrics)
}

// webhookProcess is a running `fettle-controller webhook`.
type webhookProcess struct {
	port    string
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
	args = append([]string{
		"webhook", "--namespace=" + namespace, "--kubeconfig=" + c.kubeconfig(t), "--bind-address=:0", "--metrics-bind-address=127.0.0.1:0",
		"--health-probe-bind-address=127.0.0.1:0",
	}, args...)
	log := new(syncBuffer)
	command := exec.CommandContext(context.Background(), binary, args...) // it ends in the cleanup
	command.Stderr = log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		err := command.Wait()
		if err != nil || t.Failed() {
			t.Errorf("the webhook ended with %v; its log:\n%s", err, log)
		}
	})
	_, port, err := net.SplitHostPort(log.served(t, "reviews"))
	if err != nil {
		t.Fatal(err)
	}
	return webhookProcess{port: port, metrics: log.served(t, "metrics"), pid: command.Process.Pid}
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// served waits for the log to tell at which address something is served.
func (b *syncBuffer) served(t *testing.T, what string) (address string) {
	t.Helper()
	line := regexp.MustCompile(`"Serving" what="` + what + `" address="([^"]+)"`)
	apitest.Eventually(t, func() string {
		found := line.FindStringSubmatch(b.String())
		if found == nil {
			return "the log does not tell where " + what + " are served:\n" + b.String()
		}
		address = found[1]
		return ""
	})
	return address
}

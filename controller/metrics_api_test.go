// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

func (c cluster) testMetrics(t *testing.T) {
	apitest.MetricsAskForTokens(t, c.config, namespace, c.startWebhook(t, "--metrics-authentication=true").metrics)
}

// webhookProcess is a running `fettle-controller webhook`.
type webhookProcess struct {
	port    string
	metrics string
	pid     int
	// authority is what its certificate is trusted by, and token the secret at the end of its path.
	authority []byte
	token     string
}

// target is where the chart has the API server send reviews.
func (w webhookProcess) target(prefix string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{CABundle: w.authority, Service: &admissionregistrationv1.ServiceReference{
		Namespace: namespace, Name: names.Webhook, Path: ptr.To(prefix + w.token),
	}}
}

// certificateDir writes what the chart mounts: a certificate for the Service, its key and the secret of the path.
func certificateDir(t *testing.T) (dir string, authority []byte, token string) {
	t.Helper()
	dir, token = t.TempDir(), strings.Repeat("s", 64)
	authority, key, err := cert.GenerateSelfSignedCertKey(names.Webhook+"."+namespace+".svc", nil, nil)
	check.Must(t, err)
	for name, data := range map[string][]byte{"tls.crt": authority, "tls.key": key, "token": []byte(token)} {
		check.Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return dir, authority, token
}

// startWebhook builds the program and runs the webhook as a process of its own until the test ends, as the chart does.
func (c cluster) startWebhook(t *testing.T, args ...string) webhookProcess {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "fettle-controller")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/fettle-controller").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	dir, authority, token := certificateDir(t)
	args = append([]string{
		"webhook", "--kubeconfig=" + c.kubeconfig(t), "--bind-address=:0", "--metrics-bind-address=127.0.0.1:0",
		"--health-probe-bind-address=127.0.0.1:0", "--certificate-dir=" + dir,
	}, args...)
	log := new(check.Buffer)
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
	_, port, err := net.SplitHostPort(served(t, log, "reviews"))
	if err != nil {
		t.Fatal(err)
	}
	return webhookProcess{
		port: port, metrics: served(t, log, "metrics"), pid: command.Process.Pid, authority: authority, token: token,
	}
}

// served waits for the log to tell at which address something is served.
func served(t *testing.T, b *check.Buffer, what string) (address string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if address = b.Served(what); address == "" {
			return "the log does not tell where " + what + " are served:\n" + b.String()
		}
		return ""
	})
	return address
}

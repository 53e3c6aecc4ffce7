// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/apitest"
)

// testMetrics: only a caller whose token may get the path reads metrics, and only by HTTPS. The API server says who that is.
func (c cluster) testMetrics(t *testing.T) {
	reader := c.account(t, "reader")
	nobody := c.account(t, "nobody")
	c.create(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "fettle-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
	c.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "fettle-metrics-reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fettle-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "reader"}},
	})
	w := c.startWebhook(t, "--metrics-authentication=true")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(scheme, token string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+w.metrics+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			return err.Error()
		}
		_ = response.Body.Close()
		return response.Status
	}
	apitest.Eventually(t, patience, func() string {
		if got := get("https", reader); got != "200 OK" {
			return "the reader is answered with " + got
		}
		return ""
	})
	for _, test := range []struct{ name, scheme, token, want string }{
		{"no token", "https", "", "401 Unauthorized"},
		{"invented token", "https", "x.y.z", "500 Internal Server Error"},
		{"an account without the right", "https", nobody, "403 Forbidden"},
		{"plain HTTP", "http", reader, "400 Bad Request"},
	} {
		if got := get(test.scheme, test.token); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// account makes a ServiceAccount and returns a token of it.
func (c cluster) account(t *testing.T, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.create(t, account)
	request := &authenticationv1.TokenRequest{}
	if err := c.client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
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

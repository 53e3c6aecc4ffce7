// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/controller/uninstall"
)

// TestRefusal: what Helm prints of an uninstall that is refused begins with the reason and names the value that overrides it.
func TestRefusal(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	if code := report("uninstall", &uninstall.InUseError{Nodes: []string{"node1"}}, &stderr); code != exitFailed {
		t.Errorf("exit %d, want %d", code, exitFailed)
	}
	got := stderr.String()
	if !strings.HasPrefix(got, "Fettle is not uninstalled, because devices are in use:") || !strings.Contains(got, "uninstall.force=true") {
		t.Errorf("printed %q", got)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		args   []string
		env    map[string]string
		want   int
		stderr string
	}{
		{"no namespace", nil, nil, exitUsage, "POD_NAMESPACE"},
		{"unknown flag", []string{"--colour=red"}, nil, exitUsage, "colour"},
		{"unknown flag of a named sub-command", []string{"run", "--colour=red"}, nil, exitUsage, "colour"},
		{"stray word", []string{"run", "fast"}, nil, exitUsage, `unexpected argument "fast"`},
		{"unknown sub-command", []string{"install"}, nil, exitUsage, `unknown sub-command "install"`},
		{"help", []string{"uninstall", "-h"}, nil, exitDone, "-delete-crds"},
		{"uninstall without namespace", []string{"uninstall"}, nil, exitUsage, "--namespace"},
		{"bad timeout", []string{"uninstall", "--timeout=0", "--namespace=a"}, nil, exitUsage, "--timeout"},
		{"webhook without a certificate", []string{"webhook"}, nil, exitUsage, "--certificate-dir"},
		{"no trusted root there", []string{"--trust-public-root=/nonexistent/x", "--namespace=a"}, nil, exitUsage, "--trust-public-root"},
		{"no kubeconfig there", []string{"--kubeconfig=/nonexistent/x", "--namespace=a"}, nil, exitFailed, "--kubeconfig"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			got := run(t.Context(), tt.args, func(key string) string { return tt.env[key] }, &stderr)
			if got != tt.want || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit %d, stderr %q; want exit %d and %q", got, stderr.String(), tt.want, tt.stderr)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"
)

// Kubectl runs kubectl and returns what it printed.
func (h *Harness) Kubectl(ctx context.Context, args ...string) (string, error) {
	return h.run(ctx, nil, append([]string{h.binary("kubectl")}, args...)...)
}

// KubectlWith runs kubectl with manifests as its input.
func (h *Harness) KubectlWith(ctx context.Context, manifests string, args ...string) (string, error) {
	return h.run(ctx, strings.NewReader(manifests), append([]string{h.binary("kubectl")}, args...)...)
}

// Apply applies manifests.
func (h *Harness) Apply(ctx context.Context, manifests string) (string, error) {
	return h.KubectlWith(ctx, manifests, "apply", "-f", "-")
}

// Create creates objects from manifests, which unlike Apply also takes those with a generateName.
func (h *Harness) Create(ctx context.Context, manifests string) (string, error) {
	return h.KubectlWith(ctx, manifests, "create", "-f", "-")
}

// Exec runs a shell script inside a container and returns what it printed.
func (h *Harness) Exec(ctx context.Context, namespace, pod, container, script string) (string, error) {
	return h.Kubectl(ctx, "exec", "--namespace", namespace, pod, "--container", container, "--", "sh", "-c", script)
}

// Logs returns the log of one container.
func (h *Harness) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	return h.Kubectl(ctx, "logs", "--namespace", namespace, pod, "--container", container)
}

// Fettle runs the command line for the cluster and returns what it prints.
func (h *Harness) Fettle(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(h.Root, "dist", "linux_"+runtime.GOARCH, "fettle")
	return h.run(ctx, nil, append([]string{program}, args...)...)
}

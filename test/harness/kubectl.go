// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"strings"
)

// Kubectl runs kubectl and returns what it printed.
func (h *Harness) Kubectl(ctx context.Context, args ...string) (string, error) {
	return h.run(ctx, nil, append([]string{h.binary("kubectl")}, args...)...)
}

// Apply applies manifests.
func (h *Harness) Apply(ctx context.Context, manifests string) (string, error) {
	return h.run(ctx, strings.NewReader(manifests), h.binary("kubectl"), "apply", "-f", "-")
}

// Create creates objects from manifests, which unlike Apply also takes those with a generateName.
func (h *Harness) Create(ctx context.Context, manifests string) (string, error) {
	return h.run(ctx, strings.NewReader(manifests), h.binary("kubectl"), "create", "-f", "-")
}

// Exec runs a shell script inside a container and returns what it printed.
func (h *Harness) Exec(ctx context.Context, namespace, pod, container, script string) (string, error) {
	return h.Kubectl(ctx, "exec", "--namespace", namespace, pod, "--container", container, "--", "sh", "-c", script)
}

// Logs returns the log of one container.
func (h *Harness) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	return h.Kubectl(ctx, "logs", "--namespace", namespace, pod, "--container", container)
}

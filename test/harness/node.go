// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Machines are the nodes of one cluster: what runs on them, and the hardware that they have.
type Machines struct{ *Config }

// NodeNames are the names of the cluster's nodes.
func (m Machines) NodeNames() []string {
	names := make([]string, m.Nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node%d", i+1)
	}
	return names
}

// OnNode runs a command inside a node, as root of that node, and returns its output.
func (m Machines) OnNode(ctx context.Context, node string, command ...string) (string, error) {
	return m.cluster(ctx, "exec", append([]string{"--node", node, "--"}, command...)...)
}

// RestartComponent stops kubelet or containerd of a node and starts it again; it returns when it serves. With kill it gets no
// chance to clean up.
func (m Machines) RestartComponent(ctx context.Context, node, component string, kill bool) error {
	_, err := m.cluster(ctx, "restart", componentArgs(node, component, kill)...)
	return err
}

// StopComponent stops kubelet or containerd of a node.
func (m Machines) StopComponent(ctx context.Context, node, component string, kill bool) error {
	_, err := m.cluster(ctx, "stop", componentArgs(node, component, kill)...)
	return err
}

// StartComponent starts what StopComponent stopped.
func (m Machines) StartComponent(ctx context.Context, node, component string) error {
	_, err := m.cluster(ctx, "start", componentArgs(node, component, false)...)
	return err
}

func componentArgs(node, component string, kill bool) []string {
	args := []string{"--node", node, "--component", component}
	if kill {
		args = append(args, "--kill")
	}
	return args
}

// Reboot ends everything on a node at once and starts the node again, with what its machine has in the places of before.
func (m Machines) Reboot(ctx context.Context, node string) error {
	if _, err := m.cluster(ctx, "reboot", "--node", node); err != nil {
		return err
	}
	return m.mirror(ctx, node)
}

// RebootOtherKernel is Reboot, after which the node reports another release of the kernel until it is rebooted again.
func (m Machines) RebootOtherKernel(ctx context.Context, node string) error {
	if _, err := m.cluster(ctx, "reboot", "--node", node, "--other-kernel"); err != nil {
		return err
	}
	return m.mirror(ctx, node)
}

// KillContainer ends a container of a pod without a chance to clean up. The id is as in the pod's status.
func (m Machines) KillContainer(ctx context.Context, node, id string) error {
	_, err := m.containerd(ctx, node, "tasks", "kill", "--signal", "SIGKILL", strings.TrimPrefix(id, "containerd://"))
	return err
}

// RunsContainer says whether a container has a process, whatever kubelet knows of it.
func (m Machines) RunsContainer(ctx context.Context, node, id string) (bool, error) {
	out, err := m.containerd(ctx, node, "tasks", "list", "--quiet")
	return slices.Contains(strings.Fields(out), strings.TrimPrefix(id, "containerd://")), err
}

func (m Machines) containerd(ctx context.Context, node string, args ...string) (string, error) {
	ctr := []string{m.binary("ctr"), "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io"}
	return m.OnNode(ctx, node, append(ctr, args...)...)
}

// Files lists what find prints below directories of a node, without the directories themselves. A directory that is missing holds
// nothing.
func (m Machines) Files(ctx context.Context, node string, dirs ...string) ([]string, error) {
	const script = `for d; do [ ! -d "$d" ] || find "$d" -mindepth 1; done | sort`
	out, err := m.OnNode(ctx, node, append([]string{"sh", "-c", script, "sh"}, dirs...)...)
	return strings.Fields(out), err
}

// StartRegistry starts a registry that the nodes reach, unless it runs, and gives its host and port. It speaks plain http.
func (h *Harness) StartRegistry(ctx context.Context) (string, error) {
	out, err := h.cluster(ctx, "registry", "up")
	return strings.TrimSpace(out), err
}

// StopRegistry stops the registry, which forgets what it had.
func (h *Harness) StopRegistry(ctx context.Context) error {
	_, err := h.cluster(ctx, "registry", "down")
	return err
}

// Processes returns the process ids of containers on a node by the containers' ids, as in a pod's status.
func (m Machines) Processes(ctx context.Context, node string) (map[string]string, error) {
	out, err := m.containerd(ctx, node, "tasks", "list")
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			ids["containerd://"+fields[0]] = fields[1]
		}
	}
	return ids, nil
}

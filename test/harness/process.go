// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// runDir has the files of a process on the node: its input, which has no end, its output and its id.
const runDir = "/run/simulators"

// startProcess starts a program in the node, which ends with the node. The program's file name is the name of the process.
func (m Machines) startProcess(ctx context.Context, node, program string, args ...string) error {
	const script = `mkdir -p "$0"; cd "$0"; name=$1; shift; rm -f "$name".in; mkfifo "$name".in
		setsid sh -c 'echo $$ > "$0".pid; exec "$@" 0<>"$0".in >"$0".log 2>&1' "$name" "$@" </dev/null >/dev/null 2>&1 &`
	command := append([]string{"sh", "-c", script, runDir, filepath.Base(program), program}, args...)
	_, err := m.OnNode(ctx, node, command...)
	return err
}

// awaitProcess waits until a program serves. Its error has the program's output.
func (m Machines) awaitProcess(ctx context.Context, node, name string, look func(context.Context) error) error {
	const limit = time.Minute
	err := m.Poll(ctx, name+" of "+node, limit, look)
	if err == nil {
		return nil
	}
	log, fault := m.OnNode(ctx, node, "cat", runDir+"/"+name+".log")
	return errors.Join(fmt.Errorf("%w: %s", err, log), fault)
}

// stopProcess ends a program.
func (m Machines) stopProcess(ctx context.Context, node, name string) error {
	_, err := m.OnNode(ctx, node, "sh", "-c", `kill -9 "$(cat "$0/$1.pid")"`, runDir, name)
	return err
}

const (
	// LocalPath is the directory of each node in which the provisioner makes volumes. It is the node's own.
	LocalPath = "/var/local-path-provisioner"

	provisioner = "local-path-provisioner"
)

// StartProvisioner starts the provisioner of KIND's storage class, rancher.io/local-path, as a process of a node. Its configuration is the
// ConfigMap local-path-config of namespace local-path-storage.
func (h *Harness) StartProvisioner(ctx context.Context, node string) error {
	program := h.tool(provisioner)
	if !h.Built {
		if _, err := h.run(ctx, nil, "make", program); err != nil {
			return err
		}
	}
	if err := h.startProcess(ctx, node, program, "start", "--kubeconfig", h.Kubeconfig()); err != nil {
		return err
	}
	return h.awaitProcess(ctx, node, provisioner, func(ctx context.Context) error {
		_, err := h.OnNode(ctx, node, "grep", "-q", "Started provisioner controller", runDir+"/"+provisioner+".log")
		return err
	})
}

// StopProvisioner ends what StartProvisioner began.
func (h *Harness) StopProvisioner(ctx context.Context, node string) error {
	return h.stopProcess(ctx, node, provisioner)
}

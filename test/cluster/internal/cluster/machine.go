// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/fettle-dev/fettle/test/cluster/internal/apiclient"
	"github.com/fettle-dev/fettle/test/cluster/internal/network"
	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

// HoldCommand is the hidden subcommand of the processes that keep namespaces; see Hold.
const HoldCommand = "hold"

// hold starts the process that keeps the namespaces of a scope and returns it once they are ready.
func (c *Cluster) hold(ctx context.Context, scope string) (int, error) {
	ready := c.readyFile(scope)
	if err := os.RemoveAll(ready); err != nil {
		return 0, fmt.Errorf("forget earlier namespaces: %w", err)
	}
	// The holder may be ready before its process is recorded here.
	if err := os.MkdirAll(filepath.Dir(ready), 0o755); err != nil {
		return 0, fmt.Errorf("make the directory of processes: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	d, err := c.spawn(scope, holder, proc.Spec{
		Cgroup: c.DaemonCgroup(scope), New: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Args: []string{self, HoldCommand, c.State, scope},
	})
	if err != nil {
		return 0, err
	}
	err = c.await(ctx, "namespaces", 20*time.Second, d, func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	})
	return d.PID, err
}

func (c *Cluster) readyFile(scope string) string { return c.PIDFile(scope, holder) + ".ready" }

// Hold is what a holder process does first, inside its new namespaces.
func Hold(state, scope string) error {
	p, err := plan.Load(state)
	if err != nil {
		return err
	}
	c := Cluster{Cluster: p}
	if scope != "" {
		n, err := p.Node(scope)
		if err != nil {
			return err
		}
		if err := node.BuildNamespace(n); err != nil {
			return err
		}
	} else if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("allow forwarding: %w", err)
	}
	if err := os.WriteFile(c.readyFile(scope), nil, 0o644); err != nil {
		return fmt.Errorf("tell that namespaces are ready: %w", err)
	}
	return nil
}

// bootMachine gives a node namespaces and connects them to the control plane's bridge.
func (c *Cluster) bootMachine(ctx context.Context, n plan.Node) error {
	controlPlane, err := proc.Running(c.PIDFile("", holder))
	if err != nil {
		return err
	}
	if controlPlane == 0 {
		return errors.New("the control plane's namespaces are gone; run: cluster up")
	}
	pid, err := c.hold(ctx, n.Name)
	if err != nil {
		return err
	}
	if err := network.Detach(controlPlane, n); err != nil { // of the boot before
		return err
	}
	if err := network.Apply(controlPlane, network.Attach(n, pid)); err != nil {
		return err
	}
	return network.Apply(pid, network.Node(c.Cluster, n))
}

func (c *Cluster) startContainerd(ctx context.Context, n plan.Node) error {
	d, err := c.start(n.Name, node.Containerd)
	if err != nil {
		return err
	}
	return c.await(ctx, "containerd", 30*time.Second, d, func(ctx context.Context) error {
		return servesCRI(ctx, filepath.Join(n.Dirs.Run, "containerd", "containerd.sock"))
	})
}

// servesCRI asks containerd for its version: it listens some time before it serves kubelet. The path of its socket may be longer than
// the 107 bytes that a socket address has.
func servesCRI(ctx context.Context, path string) (err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	conn, err := grpc.NewClient(fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// startKubelet waits until the node is Ready by a report that is newer than the start, and the new kubelet serves.
func (c *Cluster) startKubelet(ctx context.Context, n plan.Node) error {
	api, err := apiclient.New(c.Cluster)
	if err != nil {
		return err
	}
	// The API's times have whole seconds.
	from := time.Now().Truncate(time.Second)
	d, err := c.start(n.Name, node.Kubelet)
	if err != nil {
		return err
	}
	return c.await(ctx, "node Ready", 2*time.Minute, d, func(ctx context.Context) error {
		ready, heartbeat, err := api.NodeReady(ctx, n.Name)
		if err != nil {
			return err
		}
		if !ready || heartbeat.Before(from) {
			return errors.New("the node is registered, not Ready")
		}
		return api.KubeletServes(ctx, n.Name)
	})
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
	"github.com/fettle-dev/fettle/test/cluster/internal/registry"
)

// Load imports an image archive (docker-archive or OCI archive) into the named node, or into all at once.
func (c *Cluster) Load(ctx context.Context, archive, nodeName string) error {
	nodes, err := c.selected(nodeName)
	if err != nil {
		return err
	}
	var all []func() error
	for _, n := range nodes {
		all = append(all, func() error { return c.importImages(ctx, n, archive) })
	}
	return inParallel(all...)
}

// importImages feeds the archive through standard input: its path may mean something else inside the node.
func (c *Cluster) importImages(ctx context.Context, n plan.Node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open image archive: %w", err)
	}
	defer f.Close()
	inside, err := proc.Running(c.PIDFile(n.Name, holder))
	if err != nil {
		return err
	}
	if inside == 0 {
		return fmt.Errorf("%s does not run; run: cluster up", n.Name)
	}
	args := proc.Enter(inside, []string{
		filepath.Join(c.Bin, "ctr"), "--address", node.Socket, "--namespace", "k8s.io", "images", "import", "-",
	})
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s into %s: %w: %s", archive, n.Name, err, bytes.TrimSpace(out))
	}
	return nil
}

// RegistryCommand is the hidden subcommand of the registry's process.
const RegistryCommand = "serve-registry"

// RegistryUp starts the registry unless it runs.
func (c *Cluster) RegistryUp(ctx context.Context) error {
	pid, err := proc.Running(c.PIDFile(registryScope, registryComponent))
	if err != nil || pid != 0 {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	d, err := c.spawn(registryScope, registryComponent, proc.Spec{
		Cgroup: c.DaemonCgroup(registryScope), Args: []string{self, RegistryCommand, c.State},
	})
	if err != nil {
		return err
	}
	return c.await(ctx, "registry", 10*time.Second, d, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Registry)
		return errors.Join(err, closeConn(conn))
	})
}

func closeConn(c net.Conn) error {
	if c == nil {
		return nil
	}
	return c.Close()
}

// RegistryDown stops the registry and deletes its blobs.
func (c *Cluster) RegistryDown() error {
	if err := proc.Stop(c.PIDFile(registryScope, registryComponent), syscall.SIGTERM, killLimit); err != nil {
		return fmt.Errorf("stop registry: %w", err)
	}
	return os.RemoveAll(c.File("registry"))
}

// ServeRegistry is what the registry's process does.
func ServeRegistry(ctx context.Context, state string, logs io.Writer) error {
	p, err := plan.Load(state)
	if err != nil {
		return err
	}
	return registry.Serve(ctx, p.Registry, p.File("registry"), logs)
}

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

	"github.com/fettle-dev/fettle/test/cluster/internal/apiclient"
	"github.com/fettle-dev/fettle/test/cluster/internal/controlplane"
	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

// Stop ends a component and waits until it is gone; kill does so without a chance to clean up. Containers go on.
func (c *Cluster) Stop(nodeName, component string, kill bool) error {
	if _, err := c.command(nodeName, component); err != nil {
		return err
	}
	signal := syscall.SIGTERM
	if kill {
		signal = syscall.SIGKILL
	}
	if err := proc.Stop(c.PIDFile(nodeName, component), signal, killLimit); err != nil {
		return fmt.Errorf("stop %s: %w", component, err)
	}
	return c.save()
}

// Start starts a stopped component and waits until it serves.
func (c *Cluster) Start(ctx context.Context, nodeName, component string) error {
	pid, err := proc.Running(c.PIDFile(nodeName, component))
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("%s runs already as process %d", component, pid)
	}
	if err := c.startAndWait(ctx, nodeName, component); err != nil {
		return err
	}
	return c.save()
}

func (c *Cluster) startAndWait(ctx context.Context, nodeName, component string) error {
	if nodeName == "" {
		d, err := c.start("", component)
		if err != nil || component != controlplane.APIServer {
			return err
		}
		api, err := apiclient.New(c.Cluster)
		if err != nil {
			return err
		}
		return c.await(ctx, component, time.Minute, d, api.Ready)
	}
	n, err := c.Node(nodeName)
	if err != nil {
		return err
	}
	if component == node.Containerd {
		return c.startContainerd(ctx, n)
	}
	return c.startKubelet(ctx, n)
}

// Restart is Stop, then Start.
func (c *Cluster) Restart(ctx context.Context, nodeName, component string, kill bool) error {
	if err := c.Stop(nodeName, component, kill); err != nil {
		return err
	}
	return c.Start(ctx, nodeName, component)
}

// Reboot ends everything on a node at once, containers included, loses what a machine loses that loses power (/run,
// mounts, network), and starts the node again. Disks stay. The kernel's boot_id does not change: it is the host's.
// With otherKernel the node reports another release of the kernel, until the next reboot.
func (c *Cluster) Reboot(ctx context.Context, nodeName string, otherKernel bool) error {
	n, err := c.Node(nodeName)
	if err != nil {
		return err
	}
	if err := c.endNode(n); err != nil {
		return err
	}
	if err := c.bootNode(ctx, n, otherKernel); err != nil {
		return err
	}
	if err := c.startKubelet(ctx, n); err != nil {
		return err
	}
	return c.save()
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("empty directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("empty directory: %w", err)
		}
	}
	return nil
}

// Exec replaces this program by a command inside a node, or inside the control plane's network for "". The command
// belongs to the cluster: it ends with it.
func (c *Cluster) Exec(nodeName string, args []string) error {
	if nodeName != "" {
		if _, err := c.Node(nodeName); err != nil {
			return err
		}
	}
	inside, err := proc.Running(c.PIDFile(nodeName, holder))
	if err != nil {
		return err
	}
	if inside == 0 {
		return errors.New("the namespaces are gone; run: cluster up")
	}
	if err := c.groups.Join(c.DaemonCgroup(nodeName), os.Getpid()); err != nil {
		return err
	}
	return proc.Replace(proc.Enter(inside, args))
}

// LogFiles returns the log of a component, or of all where component is "".
func (c *Cluster) LogFiles(nodeName, component string) ([]string, error) {
	if component != "" {
		return []string{c.LogFile(nodeName, component)}, nil
	}
	files, err := filepath.Glob(c.File("logs", "*.log"))
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	return files, nil
}

// selected are the nodes a command is about: the named one, or all.
func (c *Cluster) selected(nodeName string) ([]plan.Node, error) {
	if nodeName == "" {
		return c.Nodes, nil
	}
	n, err := c.Node(nodeName)
	if err != nil {
		return nil, err
	}
	return []plan.Node{n}, nil
}

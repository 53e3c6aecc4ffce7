// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/cluster/internal/controlplane"
	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

// Renew makes a new cluster of one that runs: with no objects, with nodes that know of none, and with the API of another Kubernetes minor,
// "" for the newest. What takes long to make stays: network, certificates, and the nodes' images and machines.
//
// The objects go, and not only the control plane, because an API server keeps what is stored: a field that the other version does not
// have stays in an object that has it, and would not be there on a cluster of that version.
func (c *Cluster) Renew(ctx context.Context, emulate string, out io.Writer) error {
	begin := time.Now()
	c.Emulate = emulate
	if err := c.Save(); err != nil {
		return err
	}
	for _, ph := range []phase{
		{"end nodes and control plane", func(context.Context) error { return c.forget() }},
		{"control plane and containerd", func(ctx context.Context) error {
			return inParallel(
				func() error { return c.startControlPlane(ctx) },
				func() error { return c.eachNode(func(n plan.Node) error { return c.bootNode(ctx, n, false) }) },
			)
		}},
		{"kubelets until Ready", c.startKubelets},
	} {
		from := time.Now()
		if err := ph.run(ctx); err != nil {
			return fmt.Errorf("%s: %w (logs are in %s)", ph.name, err, c.File("logs"))
		}
		report(out, ph.name, from)
	}
	report(out, "total", begin)
	return c.save()
}

// forget ends the nodes and the control plane, and deletes all objects and what the nodes have of them on their disks.
func (c *Cluster) forget() error {
	if err := c.eachNode(func(n plan.Node) error {
		if err := c.endNode(n); err != nil {
			return err
		}
		for _, dir := range n.Dirs.OfObjects() {
			if err := emptyDir(dir); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, component := range []string{controlplane.Scheduler, controlplane.ControllerManager, controlplane.APIServer, controlplane.Etcd} {
		if err := proc.Stop(c.PIDFile("", component), syscall.SIGKILL, killLimit); err != nil {
			return fmt.Errorf("stop %s: %w", component, err)
		}
	}
	if err := os.RemoveAll(controlplane.EtcdDir(c.Cluster)); err != nil {
		return fmt.Errorf("delete all objects: %w", err)
	}
	return nil
}

// endNode ends everything on a node at once, containers included, and deletes what a machine loses that loses power.
func (c *Cluster) endNode(n plan.Node) error {
	if err := c.groups.Kill(c.Cgroup(n.Name), killLimit); err != nil {
		return err
	}
	if err := c.groups.Remove(c.Cgroup(n.Name)+"/kubepods", killLimit); err != nil {
		return err
	}
	if err := emptyDir(n.Dirs.Run); err != nil {
		return err
	}
	// host-local would keep the addresses of the pods that are gone.
	return emptyDir(n.Dirs.CNIState)
}

// bootNode starts a node that ended, up to its containerd.
func (c *Cluster) bootNode(ctx context.Context, n plan.Node, otherKernel bool) error {
	if err := node.WriteFiles(c.Cluster, n); err != nil {
		return err
	}
	if err := node.ChooseKernel(n, otherKernel); err != nil {
		return err
	}
	if err := c.bootMachine(ctx, n); err != nil {
		return err
	}
	return c.startContainerd(ctx, n)
}

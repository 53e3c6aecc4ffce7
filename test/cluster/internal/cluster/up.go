// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fettle-dev/fettle/test/cluster/internal/apiclient"
	"github.com/fettle-dev/fettle/test/cluster/internal/build"
	"github.com/fettle-dev/fettle/test/cluster/internal/controlplane"
	"github.com/fettle-dev/fettle/test/cluster/internal/image"
	"github.com/fettle-dev/fettle/test/cluster/internal/network"
	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
)

// A phase is one named step of a start.
type phase struct {
	name string
	run  func(context.Context) error
}

// Up starts a cluster and returns when every node is Ready and pods can be created. What an earlier run in the same
// state directory left, in whatever condition, is removed first.
func Up(ctx context.Context, o plan.Options, withRegistry bool, out io.Writer) error {
	if missing := build.Missing(o.Bin); len(missing) > 0 {
		return fmt.Errorf("%s has no %s; run: cluster build", o.Bin, strings.Join(missing, ", "))
	}
	begin := time.Now()
	if err := Down(o.State, o.Name); err != nil {
		return fmt.Errorf("clean up earlier run: %w", err)
	}
	report(out, "clean up earlier run", begin)
	used, err := network.InUse()
	if err != nil {
		return err
	}
	p, err := plan.New(o, used)
	if err != nil {
		return err
	}
	c, err := on(p)
	if err != nil {
		return err
	}
	phases := []phase{
		{"namespaces, network, certificates", c.prepare},
		{"control plane and containerd", c.startMachines},
		{"kubelets until Ready", c.startKubelets},
	}
	if withRegistry {
		phases = append(phases, phase{"registry", c.RegistryUp})
	}
	for _, ph := range phases {
		from := time.Now()
		if err := ph.run(ctx); err != nil {
			return fmt.Errorf("%s: %w (logs are in %s)", ph.name, err, c.File("logs"))
		}
		report(out, ph.name, from)
	}
	report(out, "total", begin)
	return c.save()
}

func report(out io.Writer, what string, since time.Time) {
	fmt.Fprintf(out, "%-36s %6.2f s\n", what, time.Since(since).Seconds())
}

// prepare makes all that the daemons need, in an order that a kill at any point leaves cleanable: first the state
// file that names the cluster, then the group that catches every process, then the rest.
func (c *Cluster) prepare(ctx context.Context) error {
	if err := c.Save(); err != nil {
		return err
	}
	if err := c.createGroups(); err != nil {
		return err
	}
	if err := c.enterHost(); err != nil {
		return err
	}
	return inParallel(
		func() error { return controlplane.WriteFiles(c.Cluster) },
		func() error { return image.WriteBase(c.File("base-images.tar")) },
		func() error { return c.buildMachines(ctx) },
	)
}

func (c *Cluster) createGroups() error {
	scopes := []string{"", registryScope}
	for _, n := range c.Nodes {
		scopes = append(scopes, n.Name)
	}
	for _, s := range scopes {
		if err := c.groups.Create(c.DaemonCgroup(s)); err != nil {
			return err
		}
	}
	// From here on this program is in the group too, and so is all it starts.
	return c.groups.Join(c.DaemonCgroup(""), os.Getpid())
}

func (c *Cluster) enterHost() error {
	var mountPoints []string
	for _, b := range c.Nodes[0].Dirs.Binds() {
		mountPoints = append(mountPoints, b.To)
	}
	return hostRecord(c.groups).Enter(c.ID, mountPoints)
}

// buildMachines makes the control plane's namespace with its network, then each node's.
func (c *Cluster) buildMachines(ctx context.Context) error {
	pid, err := c.hold(ctx, "")
	if err != nil {
		return err
	}
	if err := network.Apply(pid, network.ControlPlane(c.Cluster, os.Getpid())); err != nil {
		return err
	}
	if err := network.Apply(0, network.Host(c.Cluster)); err != nil {
		return err
	}
	return c.eachNode(func(n plan.Node) error {
		if err := node.WriteFiles(c.Cluster, n); err != nil {
			return err
		}
		if err := node.ShareWithHost(n); err != nil {
			return err
		}
		return c.bootMachine(ctx, n)
	})
}

// startMachines starts the control plane, and beside it containerd with the base images on every node.
func (c *Cluster) startMachines(ctx context.Context) error {
	return inParallel(
		func() error { return c.startControlPlane(ctx) },
		func() error {
			return c.eachNode(func(n plan.Node) error {
				if err := c.startContainerd(ctx, n); err != nil {
					return err
				}
				return c.importImages(ctx, n, c.File("base-images.tar"))
			})
		},
	)
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	if _, err := c.start("", controlplane.Etcd); err != nil {
		return err
	}
	server, err := c.start("", controlplane.APIServer)
	if err != nil {
		return err
	}
	api, err := apiclient.New(c.Cluster)
	if err != nil {
		return err
	}
	if err := c.await(ctx, "API server", time.Minute, server, api.Ready); err != nil {
		return err
	}
	for _, component := range []string{controlplane.ControllerManager, controlplane.Scheduler} {
		if _, err := c.start("", component); err != nil {
			return err
		}
	}
	return nil
}

// startKubelets waits for the nodes and for the service account that every pod of a test needs.
func (c *Cluster) startKubelets(ctx context.Context) error {
	api, err := apiclient.New(c.Cluster)
	if err != nil {
		return err
	}
	return inParallel(
		func() error {
			return c.await(ctx, "default service account", time.Minute, nil, api.DefaultServiceAccount)
		},
		func() error {
			return c.eachNode(func(n plan.Node) error { return c.startKubelet(ctx, n) })
		},
	)
}

func (c *Cluster) eachNode(do func(plan.Node) error) error {
	var all []func() error
	for _, n := range c.Nodes {
		all = append(all, func() error {
			if err := do(n); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
			return nil
		})
	}
	return inParallel(all...)
}

func inParallel(all ...func() error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, do := range all {
		wg.Go(func() { errs[i] = do() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

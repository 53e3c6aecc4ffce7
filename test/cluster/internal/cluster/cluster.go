// SPDX-License-Identifier: Apache-2.0

// Package cluster starts, changes and removes test clusters: it carries out what package plan decided with the
// packages that each know one mechanism.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/cluster/internal/cgroup"
	"github.com/fettle-dev/fettle/test/cluster/internal/controlplane"
	"github.com/fettle-dev/fettle/test/cluster/internal/hostchange"
	"github.com/fettle-dev/fettle/test/cluster/internal/node"
	"github.com/fettle-dev/fettle/test/cluster/internal/plan"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

const (
	// poll is the pause between two looks at something that is about to happen, on a usual machine.
	poll = 50 * time.Millisecond
	// killLimit is for processes that got SIGKILL.
	killLimit = 20 * time.Second
	// holder keeps the namespaces of a scope.
	holder = "namespaces"
	// registryComponent is the registry's process.
	registryComponent = "registry"
	// registryScope is where it is recorded and grouped, beside the nodes.
	registryScope = "registry"
)

// A Cluster is a plan together with the machine it is carried out on.
type Cluster struct {
	plan.Cluster
	groups cgroup.Hierarchies
}

// Open finds the cluster of a state directory.
func Open(state string) (*Cluster, error) {
	p, err := plan.Load(state)
	if err != nil {
		return nil, err
	}
	return on(p)
}

func on(p plan.Cluster) (*Cluster, error) {
	groups, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	return &Cluster{Cluster: p, groups: groups}, nil
}

// hostRecord is shared by all clusters of the machine.
func hostRecord(groups cgroup.Hierarchies) hostchange.Record {
	return hostchange.Record{
		File:     "/run/fettle-test-cluster/host.json",
		Settings: hostchange.KubeletSettings(),
		Alive:    func(id string) bool { return len(groups.Left("/"+id)) > 0 },
	}
}

// start runs a component in the namespaces of its scope; nodeName is "" for the control plane.
func (c *Cluster) start(nodeName, component string) (*proc.Daemon, error) {
	args, err := c.command(nodeName, component)
	if err != nil {
		return nil, err
	}
	inside, err := proc.Running(c.PIDFile(nodeName, holder))
	if err != nil {
		return nil, err
	}
	if inside == 0 {
		return nil, fmt.Errorf("start %s: the namespaces are gone; run: cluster up", component)
	}
	return c.spawn(nodeName, component, proc.Spec{
		Cgroup: c.DaemonCgroup(nodeName), NamespacesOf: inside, Args: args,
		Env: []string{"PATH=" + c.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
}

func (c *Cluster) command(nodeName, component string) ([]string, error) {
	if nodeName == "" {
		if args, ok := controlplane.Command(c.Cluster, component); ok {
			return args, nil
		}
		return nil, fmt.Errorf("no component %q in the control plane; for kubelet and containerd give --node", component)
	}
	n, err := c.Node(nodeName)
	if err != nil {
		return nil, err
	}
	if args, ok := node.Command(c.Cluster, n, component); ok {
		return node.UnderKernel(n, component, args)
	}
	return nil, fmt.Errorf("no component %q on a node: it is kubelet or containerd", component)
}

// spawn starts and records a process.
func (c *Cluster) spawn(scope, component string, s proc.Spec) (*proc.Daemon, error) {
	s.Cluster, s.Log = c.ID, c.LogFile(scope, component)
	d, err := proc.Start(s)
	if err != nil {
		return nil, err
	}
	if err := proc.Save(c.PIDFile(scope, component), d.PID); err != nil {
		// What is not recorded would not be stopped. Most often it has ended, and why says more than that it is gone.
		_ = unix.Kill(d.PID, unix.SIGKILL)
		<-d.Done
		return nil, fmt.Errorf("start %s: %w", component, errors.Join(err, d.Ended()))
	}
	return d, nil
}

// await polls until ready returns nil, the watched daemon ends, or the limit passes, on a usual machine; the last answer explains that.
func (c *Cluster) await(ctx context.Context, what string, limit time.Duration, d *proc.Daemon, ready func(context.Context) error) error {
	limit = c.Patient(limit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if d != nil {
			if ended := d.Ended(); ended != nil {
				return fmt.Errorf("wait for %s: %w", what, ended)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %s: %w", what, limit, err)
		case <-time.After(c.Patient(poll)):
		}
	}
}

// save writes the state with the processes that run now.
func (c *Cluster) save() error {
	p := c.Cluster
	p.Nodes = append([]plan.Node(nil), c.Nodes...)
	for i, n := range p.Nodes {
		p.Nodes[i].PIDs = map[string]int{}
		for _, component := range []string{holder, node.Containerd, node.Kubelet} {
			pid, err := proc.Running(c.PIDFile(n.Name, component))
			if err != nil {
				return err
			}
			if pid != 0 {
				p.Nodes[i].PIDs[component] = pid
			}
		}
	}
	return p.Save()
}

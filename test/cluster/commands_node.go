// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fettle-dev/fettle/test/cluster/internal/build"
	"github.com/fettle-dev/fettle/test/cluster/internal/cgroup"
	"github.com/fettle-dev/fettle/test/cluster/internal/cluster"
	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

func runBuild(_ context.Context, o *options, out io.Writer) error {
	source, err := o.source()
	if err != nil {
		return err
	}
	return build.Builder{Source: source, Bin: o.bin, Out: out, Nodes: os.Geteuid() == 0}.Build()
}

func runExec(_ context.Context, o *options, _ io.Writer) error {
	if len(o.args) == 0 {
		return usageError{errors.New("exec needs a command after --")}
	}
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	return c.Exec(o.node, o.args)
}

func runStop(_ context.Context, o *options, _ io.Writer) error {
	c, err := o.forComponent()
	if err != nil {
		return err
	}
	return c.Stop(o.node, o.component, o.kill)
}

func runStart(ctx context.Context, o *options, _ io.Writer) error {
	c, err := o.forComponent()
	if err != nil {
		return err
	}
	return c.Start(ctx, o.node, o.component)
}

func runRestart(ctx context.Context, o *options, _ io.Writer) error {
	c, err := o.forComponent()
	if err != nil {
		return err
	}
	return c.Restart(ctx, o.node, o.component, o.kill)
}

func runReboot(ctx context.Context, o *options, _ io.Writer) error {
	if o.node == "" {
		return usageError{errors.New("reboot needs --node NAME")}
	}
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	return c.Reboot(ctx, o.node, o.otherKernel)
}

func runLogs(_ context.Context, o *options, out io.Writer) error {
	if len(o.args) > 1 {
		return usageError{errors.New("logs takes one component, after all flags")}
	}
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	component := ""
	if len(o.args) == 1 {
		component = o.args[0]
	}
	files, err := c.LogFiles(o.node, component)
	if err != nil {
		return err
	}
	for _, f := range files {
		fmt.Fprintln(out, f)
	}
	if component != "" {
		fmt.Fprintln(out, proc.Tail(files[0], o.lines))
	}
	return nil
}

// runLaunch becomes a daemon; see proc.Launch.
func runLaunch(_ context.Context, args []string, _ io.Writer) error {
	groups, err := cgroup.Host()
	if err != nil {
		return err
	}
	return proc.Launch(args, groups.Join)
}

// runHold keeps the namespaces it was started in until it is killed.
func runHold(ctx context.Context, args []string, _ io.Writer) error {
	if len(args) != 2 {
		return errors.New("hold is internal")
	}
	if err := cluster.Hold(args[0], args[1]); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func runServeRegistry(ctx context.Context, args []string, _ io.Writer) error {
	if len(args) != 1 {
		return errors.New("serve-registry is internal")
	}
	return cluster.ServeRegistry(ctx, args[0], os.Stderr)
}

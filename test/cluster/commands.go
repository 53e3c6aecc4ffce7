// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/fettle-dev/fettle/test/cluster/internal/cluster"
	"github.com/fettle-dev/fettle/test/cluster/internal/hostcheck"
)

// A command is one subcommand. All share the flags of type options; flags lists those that it reads.
type command struct {
	name, flags, does string
	run               func(context.Context, *options, io.Writer) error
}

func commands() []command {
	return []command{
		{"check", "", "say whether this machine can run a cluster; exit 3 with the reason if not", runCheck},
		{"build", "[--bin DIR]", "compile the binaries", runBuild},
		{"up", "[--nodes N] [--emulate 1.34] [--registry] [--patience N]", "start a cluster; an earlier one here is removed", runUp},
		{"renew", "[--emulate 1.34]", "forget all objects, keep images and machines, and serve that version's API", runRenew},
		{"down", "", "remove the cluster", runDown},
		{"verify-clean", "", "exit 1 with a list if anything of the cluster is left", runVerifyClean},
		{"load", "--image FILE.tar [--node NAME]", "import an image archive into the nodes", runLoad},
		{"registry", "up|down", "start or stop a registry; up prints its address", runRegistry},
		{"exec", "[--node NAME] -- COMMAND...", "run a command inside a node, or in the control plane's network", runExec},
		{"stop", "[--node NAME] --component C [--kill]", "stop a component", runStop},
		{"start", "[--node NAME] --component C", "start a stopped component, wait until it serves", runStart},
		{"restart", "[--node NAME] --component C [--kill]", "stop and start a component", runRestart},
		{"reboot", "--node NAME [--other-kernel]", "lose all processes, mounts and /run of a node and start it again", runReboot},
		{"logs", "[--node NAME] [--lines N] [COMPONENT]", "show the end of a log, or list the logs", runLogs},
	}
}

// internalCommands are what this program starts itself as; they are no part of the interface.
func internalCommands() map[string]func(context.Context, []string, io.Writer) error {
	return map[string]func(context.Context, []string, io.Writer) error{
		"launch":                runLaunch,
		cluster.HoldCommand:     runHold,
		cluster.RegistryCommand: runServeRegistry,
	}
}

func help() string {
	var b strings.Builder
	b.WriteString("Usage: cluster COMMAND [--state DIR] [--name NAME] ...\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %s %s\n        %s\n", c.name, c.flags, c.does)
	}
	b.WriteString("\nDefaults: --state CACHE/cluster, --bin CACHE/bin; CACHE is $FETTLE_CACHE or .cache in the repository.\n")
	return b.String()
}

func (c command) parseAndRun(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := o.flags(c.name, stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return usageError{err}
	}
	o.args = flags.Args()
	if err := o.resolve(); err != nil {
		return err
	}
	return c.run(ctx, &o, stdout)
}

func runCheck(context.Context, *options, io.Writer) error {
	if err := hostcheck.Run(); err != nil {
		return fmt.Errorf("%w: %w", errUnable, err)
	}
	return nil
}

func runUp(ctx context.Context, o *options, out io.Writer) error {
	if err := runCheck(ctx, o, out); err != nil {
		return err
	}
	return cluster.Up(ctx, o.plan(), o.registry, out)
}

func runRenew(ctx context.Context, o *options, out io.Writer) error {
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	return c.Renew(ctx, o.emulate, out)
}

func runDown(ctx context.Context, o *options, out io.Writer) error {
	if err := runCheck(ctx, o, out); err != nil {
		return err
	}
	return cluster.Down(o.state, o.name)
}

func runVerifyClean(_ context.Context, o *options, out io.Writer) error {
	left, err := cluster.Left(o.state, o.name)
	if err != nil {
		return err
	}
	for _, l := range left {
		fmt.Fprintln(out, l)
	}
	if len(left) > 0 {
		return fmt.Errorf("%d things are left of the cluster; run: cluster down", len(left))
	}
	return nil
}

func runLoad(ctx context.Context, o *options, _ io.Writer) error {
	if o.image == "" {
		return usageError{errors.New("load needs --image FILE.tar")}
	}
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	return c.Load(ctx, o.image, o.node)
}

func runRegistry(ctx context.Context, o *options, out io.Writer) error {
	c, err := cluster.Open(o.state)
	if err != nil {
		return err
	}
	switch strings.Join(o.args, " ") {
	case "up":
		if err := c.RegistryUp(ctx); err != nil {
			return err
		}
		fmt.Fprintln(out, c.Registry)
		return nil
	case "down":
		return c.RegistryDown()
	}
	return usageError{errors.New("registry needs up or down, after all flags")}
}

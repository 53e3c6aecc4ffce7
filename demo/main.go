// SPDX-License-Identifier: Apache-2.0

// Command demo starts a Kubernetes on this machine, installs Fettle on simulated machines, runs the scenarios beside it and prints
// what became of each. It leaves nothing behind, unless it is told to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/test/again"
	"github.com/fettle-dev/fettle/test/harness"
)

// The exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
	// exitUnable is for a machine that cannot run a cluster.
	exitUnable = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command line.
type options struct {
	keep     bool
	emulate  string
	parallel int
	nodes    int
	names    *regexp.Regexp
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{names: regexp.MustCompile("")}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.keep, "keep", false, "leave the cluster running, and what a failed scenario made")
	flags.StringVar(&o.emulate, "emulate", "", "Kubernetes minor version whose API the cluster serves, as 1.34")
	flags.IntVar(&o.nodes, "nodes", len(machines()), "how many nodes the cluster has; some scenarios need all")
	flags.IntVar(&o.parallel, "parallel", 4, "how many scenarios run at a time")
	flags.Func("run", "run only scenarios whose names match this regular expression", func(value string) (err error) {
		o.names, err = regexp.Compile(value)
		return err
	})
	err := flags.Parse(args)
	if err == nil && (flags.NArg() > 0 || o.parallel < 1 || o.nodes < 1 || o.nodes > len(machines())) {
		err = fmt.Errorf("want flags only, at least one scenario at a time, and 1 to %d nodes", len(machines()))
		fmt.Fprintln(stderr, "demo:", err)
	}
	return o, err
}

// run returns the exit status: 0 when every scenario passed.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}
	results, err := demo(ctx, o, environ, stdout)
	switch {
	case errors.Is(err, harness.ErrUnable):
		fmt.Fprintln(stderr, "demo:", err)
		return exitUnable
	case err != nil:
		fmt.Fprintln(stderr, "demo:", err)
		return exitFailed
	}
	if slices.ContainsFunc(results, func(r result) bool { return r.Err != nil }) {
		return exitFailed
	}
	return 0
}

// demo does everything, and takes the cluster down whatever happened.
func demo(ctx context.Context, o options, environ []string, stdout io.Writer) (results []result, err error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	scenarios, err := play.Load(filepath.Join(root, "demo"), o.names)
	if err != nil {
		return nil, err
	}
	config := harness.ConfigFrom(root, environ)
	config.Name, config.State, config.Nodes = "demo", filepath.Join(config.Cache, "demo"), o.nodes
	if o.emulate != "" {
		config.Emulate = o.emulate
	}
	h := harness.New(config, stdout)
	if err := h.Check(ctx); err != nil {
		return nil, err
	}
	if err := h.Tools(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			err = again.Write(stdout, h.Stage, repeatable(config, results))
		}
	}()
	defer func() { err = errors.Join(err, leave(ctx, h, o.keep, stdout)) }()
	times, err := prepare(ctx, h, stdout)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	results, err = playAll(ctx, h, scenarios, o, stdout)
	times.scenarios = time.Since(start)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	}
	report(stdout, results, times)
	return results, err
}

// leave takes the cluster down, or says how to use it.
func leave(ctx context.Context, h *harness.Harness, keep bool, stdout io.Writer) error {
	if keep {
		cluster := filepath.Join(h.Cache, "bin", "cluster")
		fmt.Fprintf(stdout, "\nThe cluster runs: export KUBECONFIG=%s\n", h.Kubeconfig())
		fmt.Fprintf(stdout, "End it: %s down --state %s --name %s\n", cluster, h.State, h.Name)
		return nil
	}
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.Patient(limit))
	defer cancel()
	return h.Down(ctx)
}

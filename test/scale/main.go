// SPDX-License-Identifier: Apache-2.0

// Command scale measures what many nodes cost an API server: N kubelet plugins in one process, each with a client and directories of its
// own, the controller as a process, and a real etcd and kube-apiserver, which "make cluster-build" puts into .cache/bin. It plays
// scheduler and kubelet. Run it from the root of the repository:
//
//	go run ./test/scale [-nodes 300] [-check]
//
// It prints one JSON object a line; what it is doing goes to standard error. Activity is the same however many nodes there are, so
// what a node costs is the same, or something grows with the cluster.
//
//	phase    start, idle, claims, tainted, rollout, controller, server, churn, refused
//	name     what was measured in it; README.md lists the names
//	nodes    how many nodes there were
//	unit     s, 1/s, calls, B or MiB
//	value    the figure
//	target   the most that it should be
//	met      whether it is
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
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	// assets is the directory of etcd and kube-apiserver, controller the program, built from this checkout where it is empty.
	assets, controller string
	nodes              int
	// caches is how many caches of kernels are rolled out at once.
	caches int
	// look is how long a phase is looked at.
	look  time.Duration
	check bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.assets, "assets", filepath.Join(".cache", "bin"), "directory of etcd and kube-apiserver")
	flags.StringVar(&o.controller, "controller", "", "binary of the controller; built from this checkout where it is empty")
	flags.IntVar(&o.nodes, "nodes", 100, "number of nodes")
	flags.IntVar(&o.caches, "caches", 10, "number of kernel caches that are rolled out at once")
	flags.DurationVar(&o.look, "look", time.Minute, "how long a phase is looked at")
	flags.BoolVar(&o.check, "check", false, "exit with 1 where a target is missed")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: settings are flags, see -help", flags.Arg(0))
	case o.caches < 1:
		return o, fmt.Errorf("-caches is %d, expected at least 1", o.caches)
	case o.nodes < 2:
		return o, fmt.Errorf("-nodes is %d, expected at least 2: one works and one looks on", o.nodes)
	}
	return o, nil
}

// run measures all phases. A missed target is an error only where it was asked for.
func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	s := &scale{options: o, report: report{out: out, nodes: o.nodes}, progress: progress}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	for _, phase := range s.phases() {
		_, _ = fmt.Fprintf(progress, "%s %s\n", time.Now().Format(time.TimeOnly), phase.name)
		s.report.phase = phase.name
		if err := phase.measure(ctx); err != nil {
			return fmt.Errorf("phase %s: %w", phase.name, err)
		}
	}
	if o.check && s.report.missed > 0 {
		return fmt.Errorf("%d targets are missed", s.report.missed)
	}
	return nil
}

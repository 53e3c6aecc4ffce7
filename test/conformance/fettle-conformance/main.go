// SPDX-License-Identifier: Apache-2.0

// Command fettle-conformance checks a DRA kubelet plugin, whosever it is, over its sockets and prints what it found.
//
// The exit status is 0 where no check failed, 1 where one did or the run could not be made, and 2 for a wrong command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "fettle-conformance:", err)
		return 2
	}
	checks := conformance.Select(conformance.Checks(), o.focus, o.skip)
	if o.list {
		err = conformance.List(stdout, checks)
	} else {
		err = check(ctx, o, checks, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "fettle-conformance:", err)
		return 1
	}
	return 0
}

// check runs the checks and writes both reports, the second also where the run was cut off.
func check(ctx context.Context, o options, checks []conformance.Check, stdout, stderr io.Writer) error {
	config, err := o.resolve(stderr)
	if err != nil {
		return err
	}
	begin := time.Now()
	text := conformance.NewText(stdout, checks)
	var results []conformance.Result
	runErr := conformance.Run(ctx, config, checks, func(r conformance.Result) {
		text.Add(r)
		results = append(results, r)
	})
	text.Summary(time.Since(begin))
	if o.junit != "" {
		err = writeFile(o.junit, func(w io.Writer) error { return conformance.WriteJUnit(w, config.Driver, begin, results, runErr) })
	}
	if n := text.Failed(); n > 0 {
		err = errors.Join(fmt.Errorf("driver %s failed %d of %d checks", config.Driver, n, len(results)), err)
	}
	return errors.Join(runErr, err)
}

func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		return fmt.Errorf("write the report %s: %w", name, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Command fettle-conformance checks a DRA kubelet plugin, whosever it is, over its sockets and prints what it found.
//
// The exit status is 0 where no check failed, 1 where one did or the run could not be made, 2 for a wrong command line, and 3 where too
// little was checked to say anything.
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

// The exit statuses.
const (
	statusFailed       = 1
	statusUsage        = 2
	statusInconclusive = 3
)

// version is set when a release is linked.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// With a handler, a write into a pipe that nobody reads is an error, after which the run cleans up. Without one it ends the process.
	// The signal is not ignored, since the commands that restart the plugin would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ended(help(stdout), stderr)
	case err != nil:
		fmt.Fprintf(stderr, "fettle-conformance: %v\nusage: %s\nSee fettle-conformance --help.\n", err, synopsis)
		return statusUsage
	case o.version:
		_, err := fmt.Fprintln(stdout, version)
		return ended(err, stderr)
	}
	checks := conformance.Select(conformance.Checks(), o.focus, o.skip)
	switch {
	case len(checks) == 0:
		err = fmt.Errorf("%w: no check matches --focus and --skip, see --list", conformance.ErrInconclusive)
	case o.list:
		err = conformance.List(stdout, checks)
	default:
		err = check(ctx, o, checks, stdout, stderr)
	}
	return ended(err, stderr)
}

// ended prints an error and returns the exit status for it.
func ended(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "fettle-conformance:", err)
	if errors.Is(err, conformance.ErrInconclusive) {
		return statusInconclusive
	}
	return statusFailed
}

// check runs the checks and writes both reports, the second also where the run was cut off.
func check(ctx context.Context, o options, checks []conformance.Check, stdout, stderr io.Writer) error {
	config, err := o.resolve(stderr)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	begin := time.Now()
	text := conformance.NewText(stdout, checks)
	var results []conformance.Result
	runErr := conformance.Run(ctx, config, checks, func(r conformance.Result) {
		results = append(results, r)
		if err := text.Add(r); err != nil {
			stop(fmt.Errorf("write the results: %w", err))
		}
	})
	if err := text.Summary(time.Since(begin)); err != nil && runErr == nil {
		runErr = fmt.Errorf("write the results: %w", err)
	}
	if o.junit != "" {
		err := writeFile(o.junit, func(w io.Writer) error { return conformance.WriteJUnit(w, config.Driver, begin, results, runErr) })
		runErr = errors.Join(runErr, err)
	}
	verdict := conformance.Judge(config.Driver, results)
	if runErr != nil && errors.Is(verdict, conformance.ErrInconclusive) {
		return runErr // It is the reason.
	}
	return errors.Join(runErr, verdict)
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

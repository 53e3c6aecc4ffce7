// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a real Kubernetes on this machine, from binaries built of pinned Go modules: etcd, the control
// plane and a few nodes, each with containerd and kubelet in namespaces of its own. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitUnable means that this machine cannot run a cluster.
	exitUnable = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUnable wraps why this machine cannot run a cluster.
var errUnable = errors.New("this machine cannot run a test cluster")

// A usageError is about the command line.
type usageError struct{ error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUnable):
		fmt.Fprintln(stderr, err)
		return exitUnable
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "cluster: %v\n\n%s", err, help())
		return exitUsage
	}
	fmt.Fprintln(stderr, "cluster:", err)
	return exitFailed
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(stdout, help())
		return nil
	}
	if do, ok := internalCommands()[args[0]]; ok {
		return do(ctx, args[1:], stdout)
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.parseAndRun(ctx, args[1:], stdout, stderr)
		}
	}
	return usageError{fmt.Errorf("unknown command %q", args[0])}
}

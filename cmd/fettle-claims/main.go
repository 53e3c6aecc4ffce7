// SPDX-License-Identifier: Apache-2.0

// Command fettle-claims tells the kubelet plugin which claims kubelet holds. It runs beside the plugin in a container of its own, the only
// one that has kubelet's directory. It answers on a socket with UIDs. It can do nothing else: it has no capability, starts no program and
// makes no connection.
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

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/kubeletclaims"
)

// version is set by the build.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit status: 0 after a clean stop, 1 after an error, 2 for a wrong command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fettle-claims", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("kubelet-state", "/kubelet/dra_manager_state", "kubelet's own list of prepared claims")
	socket := flags.String("socket", "/run/fettle-claims/socket", "where the plugin asks")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() == 1 && flags.Arg(0) == "version":
		fmt.Fprintln(stdout, version)
		return 0
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "fettle-claims: unexpected argument %q: settings are flags, see --help\n", flags.Arg(0))
		return 2
	}
	if err := serve(ctx, *file, *socket); err != nil {
		fmt.Fprintln(stderr, "fettle-claims:", err)
		return 1
	}
	return 0
}

// serve gives up all rights first, those to make sockets and to start programs last.
func serve(ctx context.Context, file, socket string) error {
	if err := confine.Become(confine.Needs{}, os.Getenv(confine.Marker)); err != nil {
		return err
	}
	listener, err := kubeletclaims.Listen(ctx, socket)
	if err != nil {
		return err
	}
	if err := confine.OnlyServe(); err != nil {
		return errors.Join(err, listener.Close())
	}
	return kubeletclaims.Serve(ctx, listener, file)
}

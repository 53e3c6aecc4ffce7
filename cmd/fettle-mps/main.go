// SPDX-License-Identifier: Apache-2.0

// Command fettle-mps runs the control daemons of NVIDIA's Multi-Process Service for claims, as the kubelet plugin asks it on a socket. It
// runs in a DaemonSet of its own, so that no update of the plugin ends a daemon, and with it the clients. Its daemons end with it.
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
	"strings"
	"syscall"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/mps/supervise"
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
	flags := flag.NewFlagSet("fettle-mps", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("driver-root", "/", "the host's driver root as this container has it: NVIDIA's programs run in it")
	dir := flags.String("dir", "/run/fettle-mps", "directory of the socket and of the list of daemons")
	bootID := flags.String("boot-id", "/proc/sys/kernel/random/boot_id", "file that tells one boot from another")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() == 1 && flags.Arg(0) == "version":
		fmt.Fprintln(stdout, version)
		return 0
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "fettle-mps: unexpected argument %q: settings are flags, see --help\n", flags.Arg(0))
		return 2
	}
	if err := serve(ctx, *root, *dir, *bootID); err != nil {
		fmt.Fprintln(stderr, "fettle-mps:", err)
		return 1
	}
	return 0
}

// serve gives up the rights that no daemon needs first. It listens before it reads the list, as mps.Client.Stop relies on.
func serve(ctx context.Context, root, dir, bootID string) (err error) {
	if err := confine.Become(confine.MPS(), os.Getenv(confine.Marker)); err != nil {
		return err
	}
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("read the boot's id: %w", err)
	}
	s, err := supervise.Open(ctx, supervise.Config{Root: root, Dir: dir, BootID: strings.TrimSpace(string(boot)), FS: disk.OS{}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	listener, err := mps.Listen(ctx, filepath.Join(dir, mps.SocketName))
	if err != nil {
		return err
	}
	if err := s.Start(); err != nil { //nolint:contextcheck // the daemons live until Close
		return errors.Join(err, listener.Close())
	}
	// The plugin runs as the same user as this program: root, on a node.
	return mps.Serve(ctx, listener, uint32(os.Geteuid()), s)
}

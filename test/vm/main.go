// SPDX-License-Identifier: Apache-2.0

// Command vm runs a program under a real kernel of Debian, in a virtual machine whose files are this machine's, read-only. There are an
// IOMMU, a device without a driver and a disk controller with virtual functions. It needs no hardware support for virtual machines. See
// docs/design/virtual-machine.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// The exit statuses. That of a program in the machine is returned as it is.
const (
	exitFailed = 125
	exitUsage  = 2
	// exitUnable is for a machine that cannot boot another.
	exitUnable = 3
)

func main() {
	if os.Getpid() == 1 {
		if err := guest.Init(); err != nil {
			fmt.Fprintln(os.Stderr, "vm:", err)
		}
		return
	}
	// The emulator dies with the thread that started it.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// A usageError is about the command line.
type usageError struct{ error }

const usage = `Usage: vm check                     say whether this machine can boot a virtual one; exit 3 with the reason if not
       vm fetch                     download Debian's newest kernel, unless one is there
       vm run [flags] -- PROGRAM... boot, run a program, exit with its status
`

// run returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code, err := dispatch(ctx, args, stdout, stderr)
	var wrong usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "vm: %v\n%s", err, usage)
		return exitUsage
	case errors.Is(err, errUnable):
		fmt.Fprintln(stderr, err)
		return exitUnable
	case err != nil:
		fmt.Fprintln(stderr, "vm:", err)
		return exitFailed
	}
	return code
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	if len(args) == 0 {
		return 0, usageError{errors.New("want a command")}
	}
	switch command, rest := args[0], args[1:]; {
	case command == "check" && len(rest) == 0:
		return 0, check()
	case command == "fetch" && len(rest) == 0:
		return 0, fetch(ctx, stdout)
	case command == "run":
		o, err := parse(rest, stderr)
		if err != nil {
			return 0, err
		}
		return o.run(ctx, stdout, stderr)
	case slices.Contains([]string{"help", "-h", "--help"}, command):
		fmt.Fprint(stdout, usage)
		return 0, nil
	}
	return 0, usageError{fmt.Errorf("unknown command %q", args)}
}

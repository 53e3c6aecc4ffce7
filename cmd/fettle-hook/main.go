// SPDX-License-Identifier: Apache-2.0

// Command fettle-hook is Fettle's OCI createContainer hook: it makes the libraries and tools that were mounted into a container known
// to its loader and its search path. A container runtime starts it with the container's state on standard input. It says on stderr what
// is wrong, and exits with 0, 1 for a failure, or 2 for wrong usage.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/hook"
)

// version is set by the build of a release. Without it the module's own version is shown, as "go install" records it.
var version string

const usage = `fettle-hook prepares a container's root; a container runtime runs it as a createContainer hook.

Usage: fettle-hook ldconfig --dir DIR [--dir DIR ...] [--ldconfig FILE] < STATE
       fettle-hook links [--link TARGET::PATH ...] [--yielding-link TARGET::PATH ...] < STATE
       fettle-hook version
`

// errUsage marks a mistake in the command line.
var errUsage = errors.New("wrong usage; see fettle-hook help")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// No process of a container that shares the process namespace may look into this one, whose file is the host's.
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		err = dispatch(ctx, args, stdin, stdout, stderr)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "fettle-hook: %v\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "fettle-hook: %v\n", err)
		return 1
	}
}

func dispatch(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: want a command", errUsage)
	}
	switch args[0] {
	case "ldconfig":
		return runLdconfig(ctx, args[1:], stdin, stderr)
	case "links":
		return runLinks(args[1:], stdin)
	case "version":
		info, ok := debug.ReadBuildInfo()
		if !ok {
			info = &debug.BuildInfo{}
		}
		_, err := fmt.Fprintf(stdout, "fettle-hook %s\n", cmp.Or(version, info.Main.Version, "(unknown)"))
		return err
	case "help", "-h", "-help", "--help":
		_, err := io.WriteString(stdout, usage)
		return err
	case hook.Confined:
		return hook.Become()
	default:
		return fmt.Errorf("%w: unknown command %q", errUsage, args[0])
	}
}

// parse reads flags that take no arguments after them.
func parse(flags *flag.FlagSet, args []string) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errUsage, flags.Name(), err)
	}
	return nil
}

func runLdconfig(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) (err error) {
	const timeout = 20 * time.Second
	l := hook.Ldconfig{Notes: stderr}
	programs := hook.DefaultLdconfig()
	flags := flag.NewFlagSet("ldconfig", flag.ContinueOnError)
	flags.Func("dir", "directory of the container with libraries", func(dir string) error { l.Dirs = append(l.Dirs, dir); return nil })
	flags.Func("ldconfig", "the host's ldconfig", func(name string) error { programs = []string{name}; return nil })
	flags.DurationVar(&l.Timeout, "timeout", timeout, "how long the host's ldconfig may take")
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := hook.CheckDirs(l.Dirs); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if l.Program, err = hook.OpenProgram(programs); err != nil {
		return err
	}
	defer l.Program.Close()
	return with(stdin, func(c *hook.Container) error { return l.Apply(ctx, c) })
}

func runLinks(args []string, stdin io.Reader) error {
	var links []hook.Link
	flags := flag.NewFlagSet("links", flag.ContinueOnError)
	add := func(yield bool) func(string) error {
		return func(text string) error {
			l, err := hook.ParseLink(text)
			l.Yield = yield
			links = append(links, l)
			return err
		}
	}
	flags.Func("link", "TARGET::PATH; something else in its place is an error", add(false))
	flags.Func("yielding-link", "TARGET::PATH; something else in its place stays", add(true))
	if err := parse(flags, args); err != nil {
		return err
	}
	if len(links) == 0 {
		return fmt.Errorf("%w: links: want at least one --link or --yielding-link", errUsage)
	}
	return with(stdin, func(c *hook.Container) error { return c.Links(links) })
}

// with opens the container that the runtime describes.
func with(stdin io.Reader, do func(*hook.Container) error) error {
	c, err := hook.Open(stdin)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := do(c); err != nil {
		return fmt.Errorf("prepare the root of container %q: %w", c.ID, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml prints what NVIDIA's management library says about this node's GPUs, as one JSON object, and exits. Its
// subcommand watch stays and prints a line for every event and, at an interval, the health of all GPUs; its subcommand driver prints
// which files of the driver a container needs, by NVIDIA's own list. It is a program of its own so that the library, which may hang or
// crash, is never loaded into a process that has other work. Package pkg/nvml runs it and reads its output.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// task is what to do.
type task func(driverRoot, library string) error

// run returns the exit status: 0, nvml.ExitNoLibrary, nvml.ExitNoDriver, 2 for wrong usage, or 1 for everything else.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fettle-nvml", flag.ContinueOnError)
	flags.SetOutput(stderr)
	driverRoot := flags.String("driver-root", "", "directory that NVIDIA's driver is installed below (default: the usual ones)")
	library := flags.String("library", "", "the library's file (default: libnvidia-ml.so.1 in the usual places below the root)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	do, err := taskOf(flags.Args(), stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	err = do(*driverRoot, *library)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	switch {
	case errors.Is(err, nvml.ErrNoLibrary):
		return nvml.ExitNoLibrary
	case errors.Is(err, nvml.ErrNoDriver):
		return nvml.ExitNoDriver
	case err != nil:
		return 1
	}
	return 0
}

// taskOf is what the arguments ask for: one report, watching, or the driver's files.
func taskOf(args []string, stdout, stderr io.Writer) (task, error) {
	if len(args) == 0 {
		return withLibrary(func(lib gonvml.Interface) error {
			report, err := gather(lib)
			if err != nil {
				return err
			}
			return json.NewEncoder(stdout).Encode(report)
		}), nil
	}
	switch args[0] {
	case "watch":
		return watchTask(args[1:], stdout, stderr)
	case "driver":
		return driverTask(args[1:], stdout, stderr)
	default:
		return nil, fmt.Errorf("unknown argument %q, expected watch, driver or none", args[0])
	}
}

func watchTask(args []string, stdout, stderr io.Writer) (task, error) {
	flags := flag.NewFlagSet("fettle-nvml watch", flag.ContinueOnError)
	flags.SetOutput(stderr)
	interval := flags.Duration("interval", defaultInterval, "time between heartbeats")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 || *interval < minInterval {
		return nil, fmt.Errorf("watch: want no argument and an interval of at least %s", minInterval)
	}
	return withLibrary(func(lib gonvml.Interface) error { return watch(lib, *interval, stdout) }), nil
}

func driverTask(args []string, stdout, stderr io.Writer) (task, error) {
	flags := flag.NewFlagSet("fettle-nvml driver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	version := flags.String("version", "", "version of the kernel's driver (default: that of the libraries)")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("driver: unexpected argument %q", flags.Arg(0))
	}
	return func(driverRoot, _ string) error { return printDriver(driverRoot, *version, stdout) }, nil
}

// withLibrary has a task run with the library loaded.
func withLibrary(do func(gonvml.Interface) error) task {
	return func(driverRoot, library string) error { return with(driverRoot, library, do) }
}

// with loads the library and gives it to a task.
func with(driverRoot, library string, do func(gonvml.Interface) error) error {
	if library == "" {
		found, err := findLibrary(driverRoot)
		if err != nil {
			return err
		}
		library = found
	}
	lib := gonvml.New(gonvml.WithLibraryPath(library))
	switch ret := lib.Init(); ret {
	case gonvml.SUCCESS:
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("load %s: %w", library, nvml.ErrNoLibrary)
	default:
		return fmt.Errorf("initialise %s: %w", library, ret)
	}
	err := do(lib)
	if ret := lib.Shutdown(); err == nil && ret != gonvml.SUCCESS {
		return fmt.Errorf("shut down %s: %w", library, ret)
	}
	return err
}

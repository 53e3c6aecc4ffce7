// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml prints what NVIDIA's management library says about this node's GPUs, as one JSON object, and exits. Its
// subcommand watch stays and prints a line for every event and, at an interval, the health of all GPUs. It is a program of its own
// so that the library, which may hang or crash, is never loaded into a process that has other work. Package pkg/nvml runs it and
// reads its output.
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

// run returns the exit status: 0, nvml.ExitNoLibrary, 2 for wrong usage, or 1 for everything else.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fettle-nvml", flag.ContinueOnError)
	flags.SetOutput(stderr)
	driverRoot := flags.String("driver-root", "", "directory that NVIDIA's driver is installed below (default: the usual ones)")
	library := flags.String("library", "", "the library's file (default: libnvidia-ml.so.1 in the usual places below the root)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	task, err := taskOf(flags.Args(), stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	err = with(*driverRoot, *library, task)
	switch {
	case errors.Is(err, nvml.ErrNoLibrary):
		fmt.Fprintln(stderr, err)
		return nvml.ExitNoLibrary
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// taskOf is what to do with the library: print one report, or watch.
func taskOf(args []string, stdout, stderr io.Writer) (func(gonvml.Interface) error, error) {
	if len(args) == 0 {
		return func(lib gonvml.Interface) error {
			report, err := gather(lib)
			if err != nil {
				return err
			}
			return json.NewEncoder(stdout).Encode(report)
		}, nil
	}
	flags := flag.NewFlagSet("fettle-nvml watch", flag.ContinueOnError)
	flags.SetOutput(stderr)
	interval := flags.Duration("interval", defaultInterval, "time between heartbeats")
	if args[0] != "watch" {
		return nil, fmt.Errorf("unknown argument %q, expected watch or none", args[0])
	}
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 || *interval < minInterval {
		return nil, fmt.Errorf("watch: want no argument and an interval of at least %s", minInterval)
	}
	return func(lib gonvml.Interface) error { return watch(lib, *interval, stdout) }, nil
}

// with loads the library and gives it to a task.
func with(driverRoot, library string, task func(gonvml.Interface) error) error {
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
	err := task(lib)
	if ret := lib.Shutdown(); err == nil && ret != gonvml.SUCCESS {
		return fmt.Errorf("shut down %s: %w", library, ret)
	}
	return err
}

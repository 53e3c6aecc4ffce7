// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// Open gives an initialised library and its name for messages. Its arguments are the options -driver-root and -library.
type Open func(driverRoot, library string) (gonvml.Interface, string, error)

// task is what to do.
type task func(driverRoot, library string, open Open) error

// Run does what the arguments ask for. It returns the exit status: 0, 2 for wrong usage, one that pkg/nvml has a name for, or 1 for
// everything else.
func Run(args []string, stdout, stderr io.Writer, open Open) int {
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
	err = do(*driverRoot, *library, open)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return nvml.ExitStatus(err)
}

// taskOf is what the arguments ask for: one report, watching, the driver's files, something of MIG, or the compute mode.
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
	case "mig":
		return migTask(args[1:], stdout, stderr)
	case "compute-mode":
		return computeModeTask(args[1:], stdout, stderr)
	default:
		return nil, fmt.Errorf("unknown argument %q, expected watch, driver, mig, compute-mode or none", args[0])
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
	return func(driverRoot, _ string, _ Open) error { return printDriver(driverRoot, *version, stdout) }, nil
}

// withLibrary has a task run with the library loaded.
func withLibrary(do func(gonvml.Interface) error) task {
	return func(driverRoot, library string, open Open) error {
		lib, name, err := open(driverRoot, library)
		if err != nil {
			return err
		}
		err = do(lib)
		if ret := lib.Shutdown(); err == nil && ret != gonvml.SUCCESS {
			return fmt.Errorf("shut down %s: %w", name, ret)
		}
		return err
	}
}

// Load opens NVIDIA's library: the file, or the first that is found below the driver's root.
func Load(driverRoot, library string) (gonvml.Interface, string, error) {
	if library == "" {
		found, err := findLibrary(driverRoot)
		if err != nil {
			return nil, "", err
		}
		library = found
	}
	lib := gonvml.New(gonvml.WithLibraryPath(library))
	if err := started(lib.Init()); err != nil {
		return nil, "", fmt.Errorf("initialise %s: %w", library, err)
	}
	return lib, library, nil
}

// started is what the library's initialisation means.
func started(ret gonvml.Return) error {
	switch ret {
	case gonvml.SUCCESS:
		return nil
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return nvml.ErrNoLibrary
	default:
		return said(ret)
	}
}

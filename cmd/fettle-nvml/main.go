// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml prints what NVIDIA's management library says about this node's GPUs, as one JSON object, and exits. It is
// a program of its own so that the library, which may hang or crash, is never loaded into a process that has other work. Package
// pkg/nvml runs it and reads its output.
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
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	report, err := ask(*driverRoot, *library)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(report)
	}
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

// ask loads the library and gathers the report.
func ask(driverRoot, library string) (nvml.Report, error) {
	if library == "" {
		found, err := findLibrary(driverRoot)
		if err != nil {
			return nvml.Report{}, err
		}
		library = found
	}
	lib := gonvml.New(gonvml.WithLibraryPath(library))
	switch ret := lib.Init(); ret {
	case gonvml.SUCCESS:
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return nvml.Report{}, fmt.Errorf("load %s: %w", library, nvml.ErrNoLibrary)
	default:
		return nvml.Report{}, fmt.Errorf("initialise %s: %w", library, ret)
	}
	report, err := gather(lib)
	if ret := lib.Shutdown(); err == nil && ret != gonvml.SUCCESS {
		return nvml.Report{}, fmt.Errorf("shut down %s: %w", library, ret)
	}
	return report, err
}

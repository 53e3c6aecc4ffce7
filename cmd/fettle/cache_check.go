// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/gpu"
)

const cacheCheckHelp = `
Says for each GPU of a machine whether a kernel cache fits it, and if not why. The image's layers are read for what its files say, which are
believed before labels; the machine is looked at as fettle devices does. What NVIDIA's GPUs are is known with --nvml alone. The exit
status is 1 if the cache fits none.`

// errFitsNone ends the command with status 1 after the reasons were printed.
var errFitsNone = errors.New("the cache fits none of the GPUs")

// cacheFit is one device.
type cacheFit struct {
	Device  string               `json:"device"`
	GPU     string               `json:"gpu"`
	Fits    bool                 `json:"fits"`
	Reasons []kernelcache.Reason `json:"reasons,omitempty"`
}

const cacheCheckExamples = `
fettle cache check registry.example/team/kernels:v1
fettle cache check oci:kernels:v1 --root host`

func cacheCheck(flags *arguments) action {
	access := flags.cacheAccess()
	machine := flags.machine()
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, _ io.Writer) error {
		place, err := parsePlace(operands[0])
		if err != nil {
			return flags.misused(err)
		}
		fits, err := checkCache(ctx, access, place, machine)
		if err != nil {
			return fmt.Errorf("cache check: %w", err)
		}
		err = show(*format, fits, stdout, func(w io.Writer) error { return fitTable(fits, w) })
		for _, one := range fits {
			if err != nil || one.Fits {
				return err
			}
		}
		return fmt.Errorf("cache check: %w", errFitsNone)
	}
}

func checkCache(ctx context.Context, access *access, place artifactPlace, machine *machineFlags) ([]cacheFit, error) {
	inventory, err := machine.look(ctx)
	if err != nil {
		return nil, err
	}
	found, err := access.find(ctx, place)
	if err != nil {
		return nil, err
	}
	cache, err := found.inspect(ctx)
	if err != nil {
		return nil, err
	}
	var fits []cacheFit
	for _, d := range inventory.Devices {
		fitted, err := gpu.Of(d)
		if err != nil {
			continue // It is no GPU.
		}
		reasons := cache.Fits(fitted)
		fits = append(fits, cacheFit{d.Name, fitted.String(), len(reasons) == 0, reasons})
	}
	if len(fits) == 0 {
		return nil, fmt.Errorf("there is no GPU below %s: see fettle devices --root %s", machine.root, machine.root)
	}
	return fits, nil
}

func fitTable(fits []cacheFit, w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tFITS\tWHY NOT")
	for _, one := range fits {
		answer := "yes"
		if !one.Fits {
			answer = "no"
		}
		var why []string
		for _, r := range one.Reasons {
			why = append(why, r.Message)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", one.Device, answer, orDash(strings.Join(why, "; ")))
	}
	return table.Flush()
}

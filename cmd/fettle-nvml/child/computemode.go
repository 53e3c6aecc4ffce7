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

// computeModeTask reads "compute-mode -device BUSID [-parent UUID] [-set MODE]".
func computeModeTask(args []string, stdout, stderr io.Writer) (task, error) {
	flags := flag.NewFlagSet("fettle-nvml compute-mode", flag.ContinueOnError)
	flags.SetOutput(stderr)
	device := flags.String("device", "", "PCI bus id of the GPU")
	parent := flags.String("parent", "", "UUID that the GPU must have (default: any)")
	set := flags.String("set", "", "mode to set: Default, ExclusiveThread, Prohibited or ExclusiveProcess (default: none is set)")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	mode := nvml.ComputeMode(*set)
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("compute-mode: unexpected argument %q", flags.Arg(0))
	case *device == "":
		return nil, fmt.Errorf("compute-mode: want -device with the PCI bus id of a GPU")
	case mode != "" && mode.Number() < 0:
		return nil, fmt.Errorf("compute-mode: unknown mode %q, want one of %v", *set, nvml.ComputeModes())
	}
	return withLibrary(func(lib gonvml.Interface) error {
		gpu, err := find(lib, *device, *parent)
		if err == nil {
			err = refuseMIG(gpu)
		}
		if err == nil && mode != "" {
			err = setComputeMode(gpu, mode)
		}
		if err != nil {
			return err
		}
		now, err := computeMode(gpu)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(nvml.ComputeModeAnswer{Mode: now})
	}), nil
}

// find finds a GPU by its address and checks its UUID, if one is given.
func find(lib gonvml.Interface, device, uuid string) (gonvml.Device, error) {
	gpu, ret := lib.DeviceGetHandleByPciBusId(device)
	if ret == gonvml.ERROR_NOT_FOUND {
		return nil, fmt.Errorf("find GPU %s: %w: %w", device, nvml.ErrGone, ret)
	}
	if ret != gonvml.SUCCESS {
		return nil, fmt.Errorf("find GPU %s: %w", device, said(ret))
	}
	if uuid == "" {
		return gpu, nil
	}
	now, ret := gpu.GetUUID()
	if ret != gonvml.SUCCESS {
		return nil, fmt.Errorf("read the UUID of GPU %s: %w", device, said(ret))
	}
	if now != uuid {
		return nil, fmt.Errorf("find GPU %s: %w: it is %s now, want %s", device, nvml.ErrGone, now, uuid)
	}
	return gpu, nil
}

// refuseMIG fails for a GPU in MIG mode, whose instances have modes of their own (nvmlDeviceSetComputeMode).
func refuseMIG(gpu gonvml.Device) error {
	current, _, ret := gpu.GetMigMode()
	switch {
	case ret == gonvml.ERROR_NOT_SUPPORTED:
		return nil
	case ret != gonvml.SUCCESS:
		return fmt.Errorf("read the MIG mode: %w", said(ret))
	case current == gonvml.DEVICE_MIG_ENABLE:
		return nvml.ErrMIGOn
	}
	return nil
}

func computeMode(gpu gonvml.Device) (nvml.ComputeMode, error) {
	number, ret := gpu.GetComputeMode()
	if ret != gonvml.SUCCESS {
		return "", fmt.Errorf("read the compute mode: %w", refused(ret))
	}
	modes := nvml.ComputeModes()
	if number < 0 || int(number) >= len(modes) {
		return "", fmt.Errorf("read the compute mode: the library says %d, want a number below %d", number, len(modes))
	}
	return modes[number], nil
}

func setComputeMode(gpu gonvml.Device, mode nvml.ComputeMode) error {
	ret := gpu.SetComputeMode(gonvml.ComputeMode(mode.Number()))
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("set the compute mode %s: %w", mode, refused(ret))
	}
	return nil
}

// refused is said for a setting that the GPU may lack.
func refused(ret gonvml.Return) error {
	if ret == gonvml.ERROR_NOT_SUPPORTED {
		return fmt.Errorf("%w: %w", nvml.ErrUnsupported, ret)
	}
	return said(ret)
}

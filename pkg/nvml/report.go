// SPDX-License-Identifier: Apache-2.0

// Package nvml is what NVIDIA's management library says about this node's GPUs, as plain data, and the way to ask for it without
// loading the library into this process: a short-lived child, fettle-nvml, prints a Report, or a Driver with the files that containers
// need of it, and exits, and a long-lived one prints a Message for every event and heartbeat. A driver that hangs or crashes
// takes the child with it and nothing else.
package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
)

// maxReport bounds the encoded report: 200 GPUs take about 100 KiB.
const maxReport = 1 << 20

// Report is the answer of one run of the child. Both sides come from one build, so unknown fields are an error.
type Report struct {
	// DriverVersion is nvmlSystemGetDriverVersion: "550.54.15".
	DriverVersion string `json:"driverVersion"`
	// CUDADriverVersion is the newest CUDA this driver serves: "12.4".
	CUDADriverVersion string `json:"cudaDriverVersion,omitempty"`
	// Devices are the GPUs that answered, in the library's order.
	Devices []Device `json:"devices"`
	// Faults are the questions that the library answered with an error.
	Faults []Fault `json:"faults,omitempty"`
}

// Device is one GPU. What the library does not support on it is empty or absent.
type Device struct {
	// PCIBusID is in the library's form, "00000000:1B:00.0"; pci.ParseBusID reads it.
	PCIBusID string `json:"pciBusID"`
	UUID     string `json:"uuid,omitempty"`
	Name     string `json:"name,omitempty"`
	Brand    string `json:"brand,omitempty"`
	// Architecture is the name of the generation: "Hopper".
	Architecture string `json:"architecture,omitempty"`
	// ComputeCapability is "9.0".
	ComputeCapability string `json:"computeCapability,omitempty"`
	MemoryBytes       uint64 `json:"memoryBytes,omitempty"`
	Multiprocessors   int    `json:"multiprocessors,omitempty"`
	// Minor is the minor number of the GPU's node: /dev/nvidia<Minor>.
	Minor        *int   `json:"minor,omitempty"`
	Serial       string `json:"serial,omitempty"`
	VBIOSVersion string `json:"vbiosVersion,omitempty"`
	// AddressingMode says whether programs can use the machine's memory on the GPU: "HMM", "ATS" or "None".
	AddressingMode string `json:"addressingMode,omitempty"`
	// Fabric is absent where NVLink connects the GPU with no switch.
	Fabric *Fabric `json:"fabric,omitempty"`
	// MIGMode says whether the GPU is in partition mode now; absent where it has none.
	MIGMode *bool `json:"migMode,omitempty"`
	// MIG is absent where the GPU cannot be divided, or where nobody asked.
	MIG *MIG `json:"mig,omitempty"`
}

// Fault is a question that the library could not answer.
type Fault struct {
	// Device is the bus id of the GPU, or "device N" where not even that is known.
	Device string `json:"device"`
	// Field names the JSON field of Device that is missing because of it; empty if the whole GPU is.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	// Status is the exit status that the child would have, had it been asked this alone. It tells what the answer means: see Err.
	Status int `json:"status,omitempty"`
}

// The fields of a Device that tell how the GPU is divided.
const (
	FieldMIGMode = "migMode"
	FieldMIG     = "mig"
)

// UnknownMIG are the bus ids of the GPUs whose MIG mode or instances the library could not tell. It answered the question with an error, as
// it does when the mode changes meanwhile, or it did not answer what the instances are named and owned by.
func (r Report) UnknownMIG() []string {
	untold := map[string]bool{}
	for _, dev := range r.Devices {
		untold[dev.PCIBusID] = dev.MIGMode != nil && dev.MIG == nil
	}
	var out []string
	for _, fault := range r.Faults {
		asked := fault.Field == FieldMIGMode || fault.Field == FieldMIG
		if asked || untold[fault.Device] && slices.Contains(NeededByMIG(), fault.Field) {
			out = append(out, fault.Device)
		}
	}
	return out
}

// NeededByMIG are the fields of a Device without which nothing is told of its instances: profiles are named by the memory, instances are
// owned by the UUID of their GPU, and the architecture tells whether the MIG mode changes without a reset.
func NeededByMIG() []string { return []string{"uuid", "memoryBytes", "architecture"} }

// Whole are the GPUs that are not in MIG mode. Only GPUs that answered every question are among them.
func (r Report) Whole() map[pci.Address]bool {
	out := map[pci.Address]bool{}
	for _, dev := range r.Devices {
		address, err := pci.ParseBusID(dev.PCIBusID)
		failed := slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Device == dev.PCIBusID })
		if err == nil && !failed && (dev.MIGMode == nil || !*dev.MIGMode) && (dev.MIG == nil || !dev.MIG.Current) {
			out[address] = true
		}
	}
	return out
}

// Decode reads one report of at most 1 MiB: strict JSON, nothing after it, and every device with a bus id of its own.
func Decode(r io.Reader) (Report, error) { return decode[Report](r, "report") }

// decode reads at most maxReport bytes of strict JSON with nothing after it, and checks the value.
func decode[T interface{ Validate() error }](r io.Reader, what string) (T, error) {
	var out, none T
	raw, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return none, fmt.Errorf("read %s: %w", what, err)
	}
	if len(raw) > maxReport {
		return none, fmt.Errorf("read %s: larger than %d bytes", what, maxReport)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&out); err != nil {
		return none, fmt.Errorf("decode %s: %w", what, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return none, fmt.Errorf("decode %s: something follows the JSON object", what)
	}
	if err := out.Validate(); err != nil {
		return none, fmt.Errorf("decode %s: %w", what, err)
	}
	return out, nil
}

// Validate checks what a reader relies on: that each device has a readable bus id, that no two share one, and that minors are
// numbers a node can have.
func (r Report) Validate() error {
	var faults []error
	seen := map[pci.Address]bool{}
	for i, dev := range r.Devices {
		address, err := pci.ParseBusID(dev.PCIBusID)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("devices[%d].pciBusID: %w", i, err))
		case seen[address]:
			faults = append(faults, fmt.Errorf("devices[%d].pciBusID: %s appears twice", i, address))
		}
		seen[address] = true
		if dev.Minor != nil && (*dev.Minor < 0 || *dev.Minor >= 1<<20) {
			faults = append(faults, fmt.Errorf("devices[%d].minor: %d, want 0 to %d", i, *dev.Minor, 1<<20-1))
		}
		if err := dev.Fabric.validate(); err != nil {
			faults = append(faults, fmt.Errorf("devices[%d].fabric: %w", i, err))
		}
		if err := dev.MIG.validate(); err != nil {
			faults = append(faults, fmt.Errorf("devices[%d].%w", i, err))
		}
		if dev.Multiprocessors < 0 {
			faults = append(faults, fmt.Errorf("devices[%d].multiprocessors: %d is negative", i, dev.Multiprocessors))
		}
	}
	return errors.Join(faults...)
}

// kernelVersion is a driver version as a word of its own. The first one in /proc/driver/nvidia/version is the module's; the compiler's
// follows in another line.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var kernelVersion = regexp.MustCompile(`(?m)(?:^|\s)[0-9]{3,}\.[0-9]+(?:\.[0-9]+)?\b`)

// KernelVersion finds the version of the kernel's driver in a /proc/driver/nvidia/version, such as 580.95.05. Empty: it has none.
func KernelVersion(text string) string { return strings.TrimSpace(kernelVersion.FindString(text)) }

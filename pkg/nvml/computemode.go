// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ComputeMode says how many processes may compute on a GPU (nvmlComputeMode_t).
type ComputeMode string

// The modes, as nvidia-smi prints them without underscores. ExclusiveThread is one of older drivers.
const (
	ComputeDefault          ComputeMode = "Default"
	ComputeExclusiveThread  ComputeMode = "ExclusiveThread"
	ComputeProhibited       ComputeMode = "Prohibited"
	ComputeExclusiveProcess ComputeMode = "ExclusiveProcess"
)

// ComputeModes lists the modes by their numbers in nvml.h.
func ComputeModes() []ComputeMode {
	return []ComputeMode{ComputeDefault, ComputeExclusiveThread, ComputeProhibited, ComputeExclusiveProcess}
}

// Number is the mode's number in nvml.h, -1 if there is no such mode.
func (m ComputeMode) Number() int {
	for number, mode := range ComputeModes() {
		if mode == m {
			return number
		}
	}
	return -1
}

// What the library and the driver refuse about a mode of a whole GPU.
var (
	// ErrUnsupported: the GPU or its driver does not have the setting (NVML_ERROR_NOT_SUPPORTED).
	ErrUnsupported = errors.New("the GPU does not support it")
	// ErrForbidden: the driver wants an administrator, or the device nodes are closed to this container (NVML_ERROR_NO_PERMISSION).
	ErrForbidden = errors.New("the driver does not let this process do it: it wants an administrator (CAP_SYS_ADMIN), and a container that " +
		"may open the GPU's device nodes")
	// ErrMIGOn: the GPU is in MIG mode, in which the setting is one of its instances.
	ErrMIGOn = errors.New("the GPU is in MIG mode")
)

// GPU names a whole GPU.
type GPU struct {
	// PCIBusID is its address, in any of NVIDIA's and the kernel's forms. Another UUID at the address is ErrGone.
	PCIBusID string
	UUID     string
}

// ComputeModeAnswer is what the child says after it looked at a GPU's compute mode or changed it.
type ComputeModeAnswer struct {
	// Mode is the mode now.
	Mode ComputeMode `json:"mode"`
}

// Validate refuses a mode that nobody knows.
func (a ComputeModeAnswer) Validate() error {
	if a.Mode.Number() < 0 {
		return fmt.Errorf("compute mode %.80q, want one of %v", string(a.Mode), ComputeModes())
	}
	return nil
}

// DecodeComputeModeAnswer reads one answer: strict JSON with nothing after it.
func DecodeComputeModeAnswer(r io.Reader) (ComputeModeAnswer, error) {
	return decode[ComputeModeAnswer](r, "answer about the compute mode")
}

// ComputeMode reads the compute mode of a GPU that is not in MIG mode. The lock is as for questions about MIG.
func (p *Prober) ComputeMode(ctx context.Context, lock *os.File, gpu GPU) (ComputeMode, error) {
	return p.computeMode(ctx, ask[ComputeModeAnswer]{lock: lock}, gpu)
}

// SetComputeMode sets the compute mode and returns the one that the library says then. Processes that have the GPU open go on, whatever the
// mode. The child keeps CAP_SYS_ADMIN, if this process has it.
func (p *Prober) SetComputeMode(ctx context.Context, lock *os.File, gpu GPU, mode ComputeMode) (ComputeMode, error) {
	return p.computeMode(ctx, ask[ComputeModeAnswer]{lock: lock, args: []string{"-set", string(mode)}, setting: true}, gpu)
}

func (p *Prober) computeMode(ctx context.Context, a ask[ComputeModeAnswer], gpu GPU) (ComputeMode, error) {
	a.args = append([]string{"compute-mode", "-device", gpu.PCIBusID, "-parent", gpu.UUID}, a.args...)
	a.decode = DecodeComputeModeAnswer
	answer, err := probe(ctx, p, a)
	return answer.Mode, err
}

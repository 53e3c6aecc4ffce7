// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
)

// ModeKind is the kind of the step that switches the MIG mode of a GPU on which that takes no reset (Hopper and later). Its target is the
// address of the GPU. A claim for an instance needs it on, a claim for the whole GPU needs it off.
const ModeKind = "gpu.mig-mode"

// Mode are the parameters of the step. Undo changes nothing: the next claim's step sets what that claim needs.
type Mode struct {
	// Parent is the UUID of the GPU, PCIAddress where it is.
	Parent     string      `json:"parent"`
	PCIAddress pci.Address `json:"pciAddress"`
	On         bool        `json:"on"`
}

// Step makes the step.
func (m *Mode) Step() (step.Step, error) { return step.New(ModeKind, m.PCIAddress.String(), m) }

// setMode switches the mode, unless it is as wanted. The GPU must have no client, no instance to switch it off, and be none on which the
// change needs a reset. Otherwise setMode fails and changes nothing. Afterwards the minor of the GPU's node may be another.
func (i *Instances) setMode(ctx context.Context, m *Mode) (err error) {
	lock, err := i.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	place := nvml.MIGPlace{PCIBusID: m.PCIAddress.String(), Parent: m.Parent}
	_, err = i.config.Library.SetMIGMode(ctx, lock, place, m.On, false)
	switch {
	case errors.Is(err, nvml.ErrInUse):
		return fmt.Errorf("GPU %s: switch its MIG mode: something uses the GPU, such as a monitor or an instance of somebody else: %w",
			m.PCIAddress, err)
	case err != nil:
		return fmt.Errorf("GPU %s: switch its MIG mode: %w", m.PCIAddress, err)
	}
	return nil
}

// keepMode is Undo of the mode.
func keepMode(context.Context, json.RawMessage) error { return nil }

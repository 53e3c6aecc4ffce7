// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// Kinds returns the steps that make parts.
func (f *Feature) Kinds() step.Kinds {
	kinds := f.mig.Kinds()
	maps.Copy(kinds, f.binder.Kinds())
	kinds[vfio.StepKind] = lookingAfter(kinds[vfio.StepKind], f.Recheck, f.Requery)
	maps.Copy(kinds, f.switcher.Kinds())
	kinds[amdmode.StepKind] = f.remembering(kinds[amdmode.StepKind], (*decision).formerCompute)
	kinds[mig.ModeKind] = f.remembering(noticing(kinds[mig.ModeKind], f.Requery, func(params json.RawMessage, err error) bool {
		m, decodeErr := step.Decode[mig.Mode](params)
		return err == nil && decodeErr == nil && f.decided.Load().modeDiffers(m)
	}), (*decision).formerMode)
	kinds[mig.Kind] = noticing(kinds[mig.Kind], f.Requery, func(_ json.RawMessage, err error) bool {
		return errors.Is(err, nvml.ErrOccupied)
	})
	return kinds
}

// lookingAfter requests a Review before a virtual machine gets a GPU: the plugin then lets go of the GPU, for which the step waits. It
// requests a new look at the machine after the virtual machine gave the GPU back: its own driver has it again.
func lookingAfter(kind step.Kind, recheck, requery notify.Signal) step.Kind {
	apply, undo := kind.Apply, kind.Undo
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		recheck.Send()
		return apply(ctx, params)
	}
	kind.Undo = func(ctx context.Context, params json.RawMessage) error {
		err := undo(ctx, params)
		if err == nil {
			requery.Send()
		}
		return err
	}
	return kind
}

// noticing requests a new query of NVIDIA's library after a step whose result shows that its last answer is out of date: the MIG mode is
// another, or somebody made an instance.
func noticing(kind step.Kind, requery notify.Signal, outdated func(params json.RawMessage, err error) bool) step.Kind {
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		err := apply(ctx, params)
		if outdated(params, err) {
			requery.Send()
		}
		return err
	}
	return kind
}

// modeDiffers says whether a GPU was in another MIG mode when NVIDIA's library was asked last.
func (d *decision) modeDiffers(m *mig.Mode) bool {
	c := d.at(m.PCIAddress)
	return c == nil || c.MIG == nil || c.MIG.Current != m.On
}

// The modes of a GPU outlive the claim whose step switched them, since other claims may need them too. So the node has the restore point:
// its step switches back, and is applied once no policy holds for the GPU and no claim has anything of it.

// remembering writes the restore point of a GPU's mode before a step switches it. former returns the step that switches back, and false if
// the GPU is as the step wants it.
func (f *Feature) remembering(kind step.Kind, former func(*decision, json.RawMessage) (step.Step, bool, error)) step.Kind {
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		back, differs, err := former(f.decided.Load(), params)
		if err != nil {
			return err
		}
		if differs {
			if err := f.points.Make(); err != nil {
				return err
			}
			if _, err := f.points.Begin(nodeClaim, back); err != nil {
				return err
			}
		}
		return apply(ctx, params)
	}
	return kind
}

// formerMode is for steps that switch the MIG mode.
func (d *decision) formerMode(params json.RawMessage) (step.Step, bool, error) {
	m, err := step.Decode[mig.Mode](params)
	if err != nil {
		return step.Step{}, false, err
	}
	c := d.at(m.PCIAddress)
	if c == nil || c.MIG == nil || c.MIG.Current == m.On {
		return step.Step{}, false, nil
	}
	back, err := c.migMode(c.MIG.Current)
	return back, true, err
}

// formerCompute is for steps that switch the compute mode of an AMD GPU.
func (d *decision) formerCompute(params json.RawMessage) (step.Step, bool, error) {
	m, err := step.Decode[amdmode.Params](params)
	if err != nil {
		return step.Step{}, false, err
	}
	c := d.at(m.Function)
	if c == nil || c.AMD == nil || c.AMD.Compute == m.Mode {
		return step.Step{}, false, nil
	}
	back, err := c.mode(c.AMD.Compute)
	return back, true, err
}

// at returns the GPU at an address, nil if there is none.
func (d *decision) at(address pci.Address) *card {
	if d == nil {
		return nil
	}
	for _, c := range d.cards {
		if c.Address == address {
			return c
		}
	}
	return nil
}

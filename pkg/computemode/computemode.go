// SPDX-License-Identifier: Apache-2.0

// Package computemode implements the step that sets the compute mode of an NVIDIA GPU: whether several processes may compute on it at once.
// Time slices want the mode Default, and a control daemon of MPS wants ExclusiveProcess, so that no process goes around it.
//
// Claims that share a GPU have the mode together. The first one's step notes the former mode, which is restored after the last claim.
// Another mode is refused meanwhile.
//
// The mode lasts as long as the driver keeps the GPU initialised ("Data Persistence" in NVIDIA's page on driver persistence): until the
// last process closes the GPU where no persistence daemon runs, and until the driver lets go of it in any case. So a claim ends without
// the driver.
//
// No setting was changed on a card (docs/design/hardware.md).
package computemode

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// StepKind is the kind of the step. Its target is the PCI address of the GPU.
const StepKind = "gpu.compute-mode"

// Params are the parameters of the step.
type Params struct {
	// Claim is the UID of the claim.
	Claim string `json:"claim"`
	// UUID is the GPU's, PCIAddress where it is.
	UUID       string      `json:"uuid"`
	PCIAddress pci.Address `json:"pciAddress"`
	// Mode is the mode to set: Default or ExclusiveProcess.
	Mode nvml.ComputeMode `json:"mode"`
	// Before is the former mode. Apply notes it in the restore point; a step of a plan has none.
	Before nvml.ComputeMode `json:"before,omitempty"`
}

// Step makes the step.
func (p *Params) Step() (step.Step, error) {
	if p.Mode != nvml.ComputeDefault && p.Mode != nvml.ComputeExclusiveProcess {
		return step.Step{}, fmt.Errorf("compute mode %q for GPU %s: want %s or %s",
			p.Mode, p.PCIAddress, nvml.ComputeDefault, nvml.ComputeExclusiveProcess)
	}
	return step.New(StepKind, p.PCIAddress.String(), p)
}

func (p *Params) gpu() nvml.GPU { return nvml.GPU{PCIBusID: p.PCIAddress.String(), UUID: p.UUID} }

// setting is what claims that share the GPU must agree on.
func (p *Params) setting() string { return "compute mode " + string(p.Mode) }

// ErrChanged refuses a GPU whose mode is neither the claims' nor the former one.
var ErrChanged = errors.New("was changed by another program")

// library is what the package asks of nvml.Prober.
type library interface {
	ComputeMode(ctx context.Context, lock *os.File, gpu nvml.GPU) (nvml.ComputeMode, error)
	SetComputeMode(ctx context.Context, lock *os.File, gpu nvml.GPU, mode nvml.ComputeMode) (nvml.ComputeMode, error)
}

// Config configures a Setter.
type Config struct {
	Library library
	// Tree is the host's tree, which says whether the kernel's driver has the GPU.
	Tree *sysfs.Tree
	// Points keeps the former modes.
	Points *restorepoint.Store
	// Changed is told, in words, of a mode that was not restored: another program changed it, or a reboot must end it. Nil: nobody.
	Changed func(gpu, what string)
}

// Setter applies and undoes the step. It is safe for concurrent use, also by several processes.
type Setter struct{ config Config }

// New makes a Setter.
func New(c Config) *Setter { return &Setter{config: c} }

// Kinds returns the step kind.
func (s *Setter) Kinds() step.Kinds {
	return step.Kinds{StepKind: {Apply: step.Do(s.apply), Undo: step.Do(s.undo), Verify: step.Do(s.verify)}}
}

// Check fails with restorepoint.ErrDisagrees if claims have another mode of the GPU. It changes nothing.
func (s *Setter) Check(p *Params) error {
	return s.config.Points.Agrees(p.setting(), StepKind, p.PCIAddress.String())
}

// apply notes the former mode durably, and then sets the mode unless it is as wanted.
func (s *Setter) apply(ctx context.Context, p *Params) (err error) {
	if err := s.config.Points.Make(); err != nil {
		return err
	}
	lock, err := s.config.Points.Lock(ctx, StepKind, p.PCIAddress.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := s.Check(p); err != nil {
		return err
	}
	now, err := s.config.Library.ComputeMode(ctx, lock, p.gpu())
	if err != nil {
		return failed(p, "read", err)
	}
	former, err := s.join(p, now)
	switch {
	case err != nil || now == p.Mode:
		return err
	case now != former:
		return fmt.Errorf("GPU %s: its compute mode %w: it is %s, claims have %s, and before them it was %s: set it to one of these by hand",
			p.PCIAddress, ErrChanged, now, p.Mode, former)
	}
	return s.set(ctx, lock, p, p.Mode)
}

// join adds the claim to the restore point, and returns the mode from before the first claim.
func (s *Setter) join(p *Params, now nvml.ComputeMode) (former nvml.ComputeMode, err error) {
	noted := *p
	noted.Before = now
	st, err := noted.Step()
	if err != nil {
		return "", err
	}
	point, err := s.config.Points.Join(p.Claim, p.setting(), st)
	if err != nil {
		return "", err
	}
	first, err := step.Decode[Params](point.Step.Params)
	if err != nil {
		return "", err
	}
	return first.Before, nil
}

func (s *Setter) set(ctx context.Context, lock *os.File, p *Params, mode nvml.ComputeMode) error {
	now, err := s.config.Library.SetComputeMode(ctx, lock, p.gpu(), mode)
	if err == nil && now != mode {
		err = fmt.Errorf("the library took it, and says %s", now)
	}
	if err != nil {
		return failed(p, "set "+string(mode)+" as", err)
	}
	return nil
}

// undo takes the claim off the restore point. After the last claim the former mode is restored, unless the GPU or the driver is gone, or
// another program changed the mode.
func (s *Setter) undo(ctx context.Context, p *Params) error {
	change := restorepoint.Change{Claim: p.Claim, Kind: StepKind, Target: p.PCIAddress.String()}
	return restorepoint.UndoShared(ctx, s.config.Points, change, func(lock *os.File, first *Params) error {
		now, err := s.config.Library.ComputeMode(ctx, lock, first.gpu())
		switch {
		case errors.Is(err, nvml.ErrGone) || err != nil && s.config.Tree.LetGo(change.Target, "nvidia"):
			return nil // a GPU that comes back has the mode of a new one
		case errors.Is(err, nvml.ErrVersions):
			s.stays(first, err)
			return nil
		case errors.Is(err, nvml.ErrMIGOn):
			s.changed(first, "the GPU is in MIG mode now")
			return nil
		case err != nil:
			return failed(first, "read", err)
		case now == first.Before:
			return nil
		case now != first.Mode:
			s.changed(first, "it is "+string(now)+" now")
			return nil
		}
		return s.set(ctx, lock, first, first.Before)
	})
}

// changed reports what another program did.
func (s *Setter) changed(p *Params, what string) {
	s.report(p, "GPU %s: its compute mode %v: claims had %s, %s; the former mode %s was not restored",
		p.PCIAddress, ErrChanged, p.Mode, what, p.Before)
}

// stays reports a mode that cannot be restored before a reboot, which ends it. A node is drained before a reboot, so no claim may wait for
// it.
func (s *Setter) stays(p *Params, err error) {
	s.report(p, "GPU %s: its compute mode stays %s until the node is rebooted; the former mode %s was not restored: %v",
		p.PCIAddress, p.Mode, p.Before, err)
}

func (s *Setter) report(p *Params, format string, args ...any) {
	if s.config.Changed != nil {
		s.config.Changed(p.PCIAddress.String(), fmt.Sprintf(format, args...))
	}
}

// verify fails if the claim has no restore point since this boot, or the mode is another.
func (s *Setter) verify(ctx context.Context, p *Params) error {
	_, mine, err := s.config.Points.Mine(p.Claim, StepKind, p.PCIAddress.String())
	if err != nil {
		return err
	}
	if !mine {
		return fmt.Errorf("GPU %s: the claim has set no compute mode since the node started", p.PCIAddress)
	}
	now, err := s.config.Library.ComputeMode(ctx, nil, p.gpu())
	if err != nil {
		return failed(p, "read", err)
	}
	if now != p.Mode {
		return fmt.Errorf("GPU %s: its compute mode %w: it is %s, want %s", p.PCIAddress, ErrChanged, now, p.Mode)
	}
	return nil
}

func failed(p *Params, verb string, err error) error {
	return fmt.Errorf("GPU %s: %s its compute mode: %w", p.PCIAddress, verb, err)
}

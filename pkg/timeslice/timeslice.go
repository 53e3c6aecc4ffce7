// SPDX-License-Identifier: Apache-2.0

// Package timeslice implements the step that sets how long a process has an NVIDIA GPU before the next one's turn, where several compute on
// it. NVIDIA's library has no call for it. So the package runs nvidia-smi of the driver root, of the version that the kernel's driver has,
// with a fixed list of arguments.
//
// Claims that share a GPU have the interval together, and another one is refused meanwhile. After the last claim the driver's default is
// set: what the tool prints about the interval has no documented form, so the former one is not known.
//
// No setting was changed on a card (docs/design/hardware.md). Not known is whether the interval outlives the last process that has
// the GPU open, where no persistence daemon runs.
package timeslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// StepKind is the kind of the step. Its target is the PCI address of the GPU.
const StepKind = "gpu.time-slice"

// Interval is one of NVIDIA's four lengths of a time slice. NVIDIA does not say how long they are.
type Interval int

// The intervals, as nvidia-smi numbers them.
const (
	Default Interval = iota
	Short
	Medium
	Long
)

// Intervals lists the names of the intervals by their numbers.
func Intervals() []string { return []string{"Default", "Short", "Medium", "Long"} }

// String returns the name.
func (i Interval) String() string {
	if !i.valid() {
		return strconv.Itoa(int(i))
	}
	return Intervals()[i]
}

func (i Interval) valid() bool { return i >= Default && i <= Long }

// Params are the parameters of the step.
type Params struct {
	// Claim is the UID of the claim.
	Claim string `json:"claim"`
	// UUID is the GPU's, PCIAddress where it is.
	UUID       string      `json:"uuid"`
	PCIAddress pci.Address `json:"pciAddress"`
	Interval   Interval    `json:"interval"`
}

// ErrMIG refuses an instance: its time slices cannot be set.
var ErrMIG = errors.New("a MIG instance cannot be given time slices, only a whole GPU can")

// Step makes the step.
func (p *Params) Step() (step.Step, error) {
	switch {
	case strings.HasPrefix(p.UUID, "MIG-"):
		return step.Step{}, fmt.Errorf("%s of GPU %s: %w", p.UUID, p.PCIAddress, ErrMIG)
	case !strings.HasPrefix(p.UUID, "GPU-"):
		return step.Step{}, fmt.Errorf("GPU %s has the UUID %q, want one that begins with GPU-", p.PCIAddress, p.UUID)
	case !p.Interval.valid():
		return step.Step{}, fmt.Errorf("time slice %d for GPU %s: want a number from 0 to 3: %v", p.Interval, p.PCIAddress, Intervals())
	}
	return step.New(StepKind, p.PCIAddress.String(), p)
}

// setting is what claims that share the GPU must agree on.
func (p *Params) setting() string { return "time slice " + p.Interval.String() }

// Config configures a Setter.
type Config struct {
	// Tree is the host's tree, which says which driver the kernel has.
	Tree *sysfs.Tree
	// Tools is the driver root, as Tools makes it.
	Tools tool.Root
	// Points keeps which claims have an interval.
	Points *restorepoint.Store
	// Changed is told, in words, of an interval that was not restored. Nil: nobody.
	Changed func(gpu, what string)
	// Timeout limits one run of the tool. Default DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is more than nvidia-smi takes where it first has to wake the GPU.
const DefaultTimeout = 15 * time.Second

// Setter applies and undoes the step. It is safe for concurrent use, also by several processes.
type Setter struct{ config Config }

// New makes a Setter.
func New(c Config) *Setter {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	return &Setter{config: c}
}

// Kinds returns the step kind. It has no Verify of its own: since the interval cannot be read, Apply sets it again.
func (s *Setter) Kinds() step.Kinds {
	return step.Kinds{StepKind: {Apply: step.Do(s.apply), Undo: step.Do(s.undo)}}
}

// Check fails with restorepoint.ErrDisagrees if claims have another interval of the GPU. It changes nothing.
func (s *Setter) Check(p *Params) error {
	return s.config.Points.Agrees(p.setting(), StepKind, p.PCIAddress.String())
}

// apply notes the claim durably and sets the interval.
func (s *Setter) apply(ctx context.Context, p *Params) (err error) {
	st, err := p.Step()
	if err != nil {
		return err
	}
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
	smi, err := s.find(ctx, lock)
	if err != nil {
		return failed(p, p.Interval, err)
	}
	_, had, err := s.config.Points.Mine(p.Claim, StepKind, p.PCIAddress.String())
	if err == nil {
		_, err = s.config.Points.Join(p.Claim, p.setting(), st)
	}
	if err != nil {
		return err
	}
	err = smi.set(ctx, p.UUID, p.Interval)
	if !had && errors.Is(err, errNothingSet) {
		// Where the tool may not set an interval, it may not set the default either: Undo must not need it.
		err = errors.Join(err, s.config.Points.End(p.Claim, StepKind, p.PCIAddress.String()))
	}
	return failed(p, p.Interval, err)
}

// undo takes the claim off the restore point. After the last claim the driver's default is set, unless the GPU or the driver is gone: the
// interval is gone then too.
func (s *Setter) undo(ctx context.Context, p *Params) error {
	change := restorepoint.Change{Claim: p.Claim, Kind: StepKind, Target: p.PCIAddress.String()}
	return restorepoint.UndoShared(ctx, s.config.Points, change, func(lock *os.File, first *Params) error {
		return failed(first, Default, s.restore(ctx, lock, first))
	})
}

// restore sets the default. Where the tool is of another driver than the kernel's, a reboot ends that and the interval. A node is drained
// before a reboot, so no claim may wait for it.
func (s *Setter) restore(ctx context.Context, lock *os.File, p *Params) error {
	smi, err := s.find(ctx, lock)
	if err == nil {
		err = smi.set(ctx, p.UUID, Default)
	}
	switch {
	case errors.Is(err, errNoDriver) || errors.Is(err, ErrGone) || err != nil && s.config.Tree.LetGo(p.PCIAddress.String(), "nvidia"):
		return nil
	case errors.Is(err, ErrVersion):
		if s.config.Changed != nil {
			s.config.Changed(p.PCIAddress.String(), fmt.Sprintf(
				"GPU %s: its time slice stays %s until the node is rebooted: %v", p.PCIAddress, p.Interval, err))
		}
		return nil
	}
	return err
}

func failed(p *Params, interval Interval, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("GPU %s: set its time slice %s: %w", p.PCIAddress, interval, err)
}

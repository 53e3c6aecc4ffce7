// SPDX-License-Identifier: Apache-2.0

// Package amdmode divides AMD's GPUs: it switches the compute partition mode of a GPU, for a claim as a step. The driver lists the modes,
// and refuses a switch while a process computes: on older kernels any process on the node, on newer ones those that may use this GPU
// (kgd2kfd_check_and_lock_kfd in drivers/gpu/drm/amd/amdkfd/kfd_device.c). The memory partition mode is read and never written.
//
// Not seen on a card (docs/design/hardware.md): all of it.
package amdmode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/deviceuse"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// StepKind is the kind of the step by which a claim has a GPU in a compute partition mode. Several claims have a partition of one GPU, so
// none of them may switch back: Undo leaves the mode as it is, and the next claim's step sets what that claim needs.
const StepKind = "gpu.partition"

// Params are the parameters of the step. Its target is the address of the GPU.
type Params struct {
	// Function is the GPU, Mode the compute partition mode: "SPX", "CPX".
	Function pci.Address `json:"function"`
	Mode     string      `json:"mode"`
}

// Step makes the step.
func (p *Params) Step() (step.Step, error) { return step.New(StepKind, p.Function.String(), p) }

var (
	// ErrNoModes refuses a GPU that cannot be divided.
	ErrNoModes = errors.New("has no partition modes")
	// ErrInvalid refuses a mode that the GPU does not have now.
	ErrInvalid = errors.New("is no mode of it now")
	// ErrInUse says that a process computes.
	ErrInUse = errors.New("still in use")
	// ErrReset says that the GPU is being reset.
	ErrReset = errors.New("is being reset: retried")
	// ErrChanged says that somebody else switched the mode of a GPU.
	ErrChanged = errors.New("was switched by another program meanwhile")
)

// Config configures a Switcher.
type Config struct {
	Tree  *sysfs.Tree
	Write sysfs.AttrWriter
	// Wait limits how long a switch waits for users to go, and for the driver to answer one write. Default DefaultWait.
	Wait time.Duration
	// Clock defaults to the real clock.
	Clock clock.Clock
}

// DefaultWait leaves a step the time to fail within the 45 seconds that kubelet waits.
const DefaultWait = 15 * time.Second

// Switcher switches modes. It is safe for concurrent use. The caller must keep claims that need different modes of a GPU from being
// prepared at once.
type Switcher struct {
	config Config
	writer *sysfs.Bounded

	mu sync.Mutex
	// turns has a place for the one who looks at the mode of a GPU and switches it.
	turns map[pci.Address]chan struct{}
}

// New makes a Switcher.
func New(c Config) *Switcher {
	c.Wait, c.Clock = cmp.Or(c.Wait, DefaultWait), cmp.Or[clock.Clock](c.Clock, clock.RealClock{})
	return &Switcher{config: c, writer: sysfs.NewBounded(c.Write, c.Clock, c.Wait), turns: map[pci.Address]chan struct{}{}}
}

// Kinds returns the step kind.
func (s *Switcher) Kinds() step.Kinds {
	return step.Kinds{StepKind: {
		Apply:  step.Do(func(ctx context.Context, p *Params) error { return s.Ensure(ctx, p.Function, p.Mode) }),
		Undo:   func(context.Context, json.RawMessage) error { return nil },
		Verify: step.Do(s.verify),
	}}
}

// Ensure switches the mode of a GPU unless it is as wanted. It refuses a mode that the GPU does not have, or not with its memory mode, with
// ErrInvalid, and fails with ErrInUse if a process computes for as long as it waits. It may be tried again after any failure.
func (s *Switcher) Ensure(ctx context.Context, function pci.Address, mode string) error {
	done, err := s.turn(ctx, function)
	if err != nil {
		return err
	}
	defer done()
	if err := s.writer.Settle(ctx, attribute(function)); err != nil {
		return fmt.Errorf("an earlier switch of GPU %s: %w", function, err)
	}
	m, err := s.read(ctx, function)
	if err != nil || m.Compute == mode {
		return err
	}
	if err := m.Check(mode); err != nil {
		return fmt.Errorf("GPU %s: %w", function, err)
	}
	return s.switchTo(ctx, function, mode)
}

// turn waits until nobody else switches the GPU: of two claims for the same mode one switches, and the other finds it done.
func (s *Switcher) turn(ctx context.Context, function pci.Address) (done func(), err error) {
	s.mu.Lock()
	place, ok := s.turns[function]
	if !ok {
		place = make(chan struct{}, 1)
		s.turns[function] = place
	}
	s.mu.Unlock()
	select {
	case place <- struct{}{}:
		return func() { <-place }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another claim that switches GPU %s: %w", function, context.Cause(ctx))
	}
}

func (s *Switcher) verify(ctx context.Context, p *Params) error {
	m, err := s.read(ctx, p.Function)
	if err == nil && m.Compute != p.Mode {
		err = fmt.Errorf("GPU %s %w: it is in mode %s, want %s: delete the pod", p.Function, ErrChanged, m.Compute, p.Mode)
	}
	return err
}

// read is Read, but waits no longer than for an answer to a write: the driver lets nobody read the mode while it switches, whoever asked it
// to (amdgpu_xcp_query_partition_mode in amdgpu_xcp.c).
func (s *Switcher) read(ctx context.Context, function pci.Address) (Modes, error) {
	found := make(chan Modes, 1)
	_, err := s.writer.Read(ctx, attribute(function), func() (string, error) {
		m, err := Read(s.config.Tree, function)
		found <- m
		return "", err
	})
	if errors.Is(err, sysfs.ErrNoAnswer) {
		return Modes{}, fmt.Errorf("GPU %s: %w", function, err)
	}
	return <-found, err
}

// attribute is what a GPU's mode is written to.
func attribute(function pci.Address) string {
	return path.Join(sysfs.PCIDevice(function.String()), currentCompute)
}

// switchTo writes the mode, again as long as the driver says that a process computes: the driver forgets a process some time after it
// ended.
func (s *Switcher) switchTo(ctx context.Context, function pci.Address, mode string) error {
	const pause = 500 * time.Millisecond
	err := s.writer.Retry(ctx, syscall.EBUSY, pause, func() error {
		return s.writer.Write(ctx, attribute(function), mode)
	})
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("GPU %s is not switched to %s: %w: %w: %s", function, mode, err, ErrInUse, s.users(function))
	}
	return s.explain(ctx, function, mode, err)
}

// explain judges the driver's answer, and checks that the mode is in effect. Without an answer it reads nothing.
func (s *Switcher) explain(ctx context.Context, function pci.Address, mode string, err error) error {
	if errors.Is(err, sysfs.ErrNoAnswer) {
		return fmt.Errorf("switch GPU %s to %s: %w", function, mode, err)
	}
	m, again := s.read(ctx, function)
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("GPU %s %w: %w", function, ErrReset, err)
	case errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("GPU %s: mode %s %w: %w: it has %s, and memory mode %s; %s",
			function, mode, ErrInvalid, err, strings.Join(m.Computes, ", "), m.Memory, pairsText())
	case err != nil:
		return fmt.Errorf("switch GPU %s to %s: %w", function, mode, err)
	case again != nil:
		return again
	case m.Compute != mode:
		return fmt.Errorf("GPU %s is in mode %s after it was switched to %s: see the kernel's log", function, m.Compute, mode)
	}
	return nil
}

// users names the processes that compute on any GPU, since the driver does not say which one is in the way.
func (s *Switcher) users(function pci.Address) string {
	of := deviceuse.Function{Address: function}
	major, minor, err := s.config.Tree.ReadDev(path.Join(sysfs.ClassKFD, "dev"))
	if err == nil {
		of.Nodes = append(of.Nodes, sysfs.Number{Major: major, Minor: minor})
	}
	users, err := deviceuse.Find(s.config.Tree, []deviceuse.Function{of})
	if err != nil || len(users) == 0 {
		return "no process that has /dev/kfd open is found, and one that ended is forgotten soon"
	}
	return users[0].String() + ": stop it"
}

// The attributes of a GPU (drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c, amdgpu_gmc.c).
const (
	currentCompute   = "current_compute_partition"
	availableCompute = "available_compute_partition"
	currentMemory    = "current_memory_partition"
	availableMemory  = "available_memory_partition"
)

// Modes are the partition modes of a GPU.
type Modes struct {
	// Compute and Memory are the present modes: "SPX", "NPS1".
	Compute, Memory string
	// Computes and Memories are the modes that it can have.
	Computes, Memories []string
}

// Read reads the modes of a GPU. One that cannot be divided is ErrNoModes. A GPU without memory modes is in NPS1.
func Read(tree *sysfs.Tree, function pci.Address) (Modes, error) {
	file := func(name string) (string, error) {
		text, err := tree.ReadString(path.Join(sysfs.PCIDevice(function.String()), name))
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return text, err
	}
	var m Modes
	var computes, memories string
	var errs [4]error
	m.Compute, errs[0] = file(currentCompute)
	computes, errs[1] = file(availableCompute)
	m.Memory, errs[2] = file(currentMemory)
	memories, errs[3] = file(availableMemory)
	if err := errors.Join(errs[:]...); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return m, fmt.Errorf("GPU %s %w: %w", function, ErrReset, err)
		}
		return m, err
	}
	if m.Compute == "" || computes == "" {
		return m, fmt.Errorf("GPU %s %w", function, ErrNoModes)
	}
	m.Computes, m.Memories = list(computes), list(memories)
	m.Memory = cmp.Or(m.Memory, "NPS1")
	return m, nil
}

// list reads "SPX, DPX, CPX".
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// Check refuses a compute mode that the GPU does not have, or not with the present memory mode.
func (m *Modes) Check(mode string) error {
	if !slices.Contains(m.Computes, mode) {
		return fmt.Errorf("mode %q %w: want %s", mode, ErrInvalid, strings.Join(m.Computes, ", "))
	}
	if with := pairs()[mode]; with != nil && !slices.Contains(with, m.Memory) {
		return fmt.Errorf("mode %s %w: memory mode %s does not go with it; %s", mode, ErrInvalid, m.Memory, pairsText())
	}
	return nil
}

// pairs are the memory modes that go with each compute mode (aqua_vanjaram.c, __aqua_vanjaram_is_valid_mode).
func pairs() map[string][]string {
	return map[string][]string{
		"SPX": {"NPS1"}, "DPX": {"NPS1", "NPS2"}, "TPX": {"NPS1", "NPS4"}, "QPX": {"NPS1", "NPS4"}, "CPX": {"NPS1", "NPS4"},
	}
}

func pairsText() string {
	return "SPX goes with NPS1, DPX with NPS1 and NPS2, TPX, QPX and CPX with NPS1 and NPS4"
}

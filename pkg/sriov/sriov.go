// SPDX-License-Identifier: Apache-2.0

// Package sriov makes the virtual functions of a PCI function and removes them again, as a step. It makes them only where there are none,
// and removes only what it made: virtual functions that somebody else made are never touched. Before it makes them it provisions them,
// where Intel's xe driver lets it, and says whether the kernel binds drivers to them.
//
// What was seen: the kernel itself with NVMe functions in a virtual machine. Not seen on a card (docs/design/hardware.md): xe's
// provisioning.
package sriov

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/deviceuse"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// StepKind is the kind of the step that makes virtual functions.
const StepKind = "pci.vfs"

// Params are the parameters of the step.
type Params struct {
	// Function is the physical function. It is the step's target.
	Function pci.Address `json:"function"`
	// Claim is the UID of the claim, or what stands for it if the node itself wants the functions.
	Claim string `json:"claim"`
	// Count is how many virtual functions to make.
	Count int `json:"count"`
	// Set has the attributes to write before the functions are made, in this order; Before has their values of then. Names are relative to
	// the directory of Function.
	Set    []Setting `json:"set,omitempty"`
	Before []Setting `json:"before,omitempty"`
}

// Setting is the value of an attribute.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

var (
	// ErrNoSRIOV refuses a function that cannot have virtual functions.
	ErrNoSRIOV = errors.New("cannot have virtual functions: enable SR-IOV in the firmware and load the driver that supports it")
	// ErrTooMany refuses more virtual functions than there can be.
	ErrTooMany = errors.New("cannot have so many virtual functions")
	// ErrForeign refuses a function of which somebody else made virtual functions.
	ErrForeign = errors.New("has virtual functions that Fettle did not make")
	// ErrInUse says that a virtual function is used.
	ErrInUse = errors.New("still in use")
)

// Config configures a Maker.
type Config struct {
	Tree  *sysfs.Tree
	Write sysfs.AttrWriter
	// Points keeps what functions were before.
	Points *restorepoint.Store
	// Wait limits how long a step waits for users to go, and for a driver to answer one write. Default DefaultWait.
	Wait time.Duration
	// Clock defaults to the real clock.
	Clock clock.Clock
}

// DefaultWait leaves a step the time to undo what it did within the 45 seconds that kubelet waits.
const DefaultWait = 15 * time.Second

// Maker plans, applies and undoes the step. It is safe for concurrent use. The caller must hold the device of a step.
type Maker struct {
	config Config
	writer *sysfs.Bounded
}

// New makes a Maker.
func New(c Config) *Maker {
	c.Wait, c.Clock = cmp.Or(c.Wait, DefaultWait), cmp.Or[clock.Clock](c.Clock, clock.RealClock{})
	return &Maker{config: c, writer: sysfs.NewBounded(c.Write, c.Clock, c.Wait)}
}

// Kinds returns the step kind.
func (m *Maker) Kinds() step.Kinds {
	return step.Kinds{StepKind: {Apply: step.Do(m.apply), Undo: step.Do(m.undo), Verify: step.Do(m.verify)}}
}

const (
	numVFs    = "sriov_numvfs"
	totalVFs  = "sriov_totalvfs"
	autoprobe = "sriov_drivers_autoprobe"
)

func attribute(function pci.Address, name string) string {
	return path.Join(sysfs.PCIDevice(function.String()), name)
}

// Options say how virtual functions are made.
type Options struct {
	// Autoprobe says whether the kernel binds drivers to them. Nil: as it is.
	Autoprobe *bool
	// Provisioning says what each function gets of the card's resources. Empty: as the driver divides them.
	Provisioning []Provisioning
}

// Plan reads what the step must restore and returns it. It changes nothing. It refuses a function that cannot have so many virtual
// functions, or has some already.
func (m *Maker) Plan(ctx context.Context, function pci.Address, claim string, count int, o Options) (step.Step, error) {
	if p, mine, err := m.config.Points.Own(claim, StepKind, function.String()); mine || err != nil {
		return p.Step, err
	}
	p := Params{Function: function, Claim: claim, Count: count}
	now, err := m.look(ctx, &p)
	if err != nil {
		return step.Step{}, err
	}
	if now > 0 {
		return step.Step{}, fmt.Errorf("PCI function %s %w (%d)", function, ErrForeign, now)
	}
	if o.Autoprobe != nil {
		value := "0"
		if *o.Autoprobe {
			value = "1"
		}
		p.Set = append(p.Set, Setting{Name: autoprobe, Value: value})
	}
	for _, settings := range o.Provisioning {
		p.Set = append(p.Set, settings.settings()...)
	}
	for _, s := range p.Set {
		value, err := m.value(function, s.Name)
		if errors.Is(err, fs.ErrNotExist) {
			return step.Step{}, fmt.Errorf("the kernel cannot set %s of %s: leave it out, or upgrade the kernel: %w", s.Name, function, err)
		}
		if err != nil {
			return step.Step{}, err
		}
		p.Before = append(p.Before, Setting{Name: s.Name, Value: value})
	}
	return step.New(StepKind, function.String(), p)
}

// look returns how many virtual functions there are, and refuses a count that cannot be.
func (m *Maker) look(ctx context.Context, p *Params) (now int, err error) {
	total, err := m.config.Tree.ReadInt(attribute(p.Function, totalVFs))
	if errors.Is(err, fs.ErrNotExist) || err == nil && total == 0 {
		return 0, fmt.Errorf("PCI function %s %w", p.Function, ErrNoSRIOV)
	}
	if err != nil {
		return 0, err
	}
	if p.Count < 1 || int64(p.Count) > total {
		return 0, fmt.Errorf("PCI function %s %w: %d, want 1 to %d", p.Function, ErrTooMany, p.Count, total)
	}
	return m.enabled(ctx, p.Function)
}

// enabled is how many virtual functions there are. Newer kernels tell it only once no driver has the function locked, as one that hangs has
// for ever, whoever asked it for something (sriov_numvfs_show in drivers/pci/iov.c). So it is waited for as long as for a write.
func (m *Maker) enabled(ctx context.Context, function pci.Address) (n int, err error) {
	name := attribute(function, numVFs)
	text, err := m.writer.Read(ctx, name, func() (string, error) { return m.config.Tree.ReadString(name) })
	if err == nil {
		if n, err = strconv.Atoi(text); err != nil {
			err = fmt.Errorf("read %s: %w: %.40q, want a number", sysfs.HostPath(name), sysfs.ErrMalformed, text)
		}
	}
	return n, err
}

// value reads an attribute. Of a choice it is the word in brackets: "low [normal] high".
func (m *Maker) value(function pci.Address, name string) (string, error) {
	text, err := m.config.Tree.ReadString(attribute(function, name))
	if _, rest, ok := strings.Cut(text, "["); ok {
		text, _, _ = strings.Cut(rest, "]")
	}
	return text, err
}

// apply provisions and makes the virtual functions.
func (m *Maker) apply(ctx context.Context, p *Params) error {
	if err := m.settle(ctx, p.Function); err != nil {
		return err
	}
	now, err := m.look(ctx, p)
	if err != nil {
		return err
	}
	_, mine, err := m.config.Points.Mine(p.Claim, StepKind, p.Function.String())
	if err != nil {
		return err
	}
	switch {
	case now > 0 && (!mine || now != p.Count):
		return fmt.Errorf("PCI function %s %w (%d)", p.Function, ErrForeign, now)
	case now > 0:
		return m.check(ctx, p)
	}
	st, err := step.New(StepKind, p.Function.String(), p)
	if err != nil {
		return err
	}
	if _, err := m.config.Points.Begin(p.Claim, st); err != nil {
		return err
	}
	for _, s := range p.Set {
		if err := m.set(ctx, p.Function, s); err != nil {
			return err
		}
	}
	if err := m.writer.Write(ctx, attribute(p.Function, numVFs), strconv.Itoa(p.Count)); err != nil {
		return fmt.Errorf("make %d virtual functions: %w", p.Count, explain(err))
	}
	if err := m.check(ctx, p); err != nil {
		// These are known to be of this step only here.
		return errors.Join(err, m.writer.Write(ctx, attribute(p.Function, numVFs), "0"))
	}
	return nil
}

// explain adds to what the kernel says what a person can do.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%w: no driver that supports it holds the function", err)
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: somebody else made some meanwhile", err)
	case errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: the machine has no address space for them, enable SR-IOV in the firmware", err)
	}
	return err
}

// check compares what there is with what the step made.
func (m *Maker) check(ctx context.Context, p *Params) error {
	now, err := m.enabled(ctx, p.Function)
	if err != nil {
		return err
	}
	found, err := VirtualFunctions(m.config.Tree, p.Function)
	if err != nil {
		return err
	}
	if now != p.Count || len(found) != p.Count {
		return fmt.Errorf("PCI function %s has %d virtual functions and shows %d, want %d: see the kernel's log",
			p.Function, now, len(found), p.Count)
	}
	return nil
}

func (m *Maker) verify(ctx context.Context, p *Params) error { return m.check(ctx, p) }

// set writes an attribute unless it has the value.
func (m *Maker) set(ctx context.Context, function pci.Address, s Setting) error {
	now, err := m.value(function, s.Name)
	if err != nil || now == s.Value {
		return err
	}
	return m.writer.Write(ctx, attribute(function, s.Name), s.Value)
}

// undo removes the virtual functions that the step made, and then restores the attributes: a driver refuses some of them before. If there
// are others than it made, somebody else made those; they stay, with the attributes.
func (m *Maker) undo(ctx context.Context, p *Params) error {
	change := restorepoint.Change{Claim: p.Claim, Kind: StepKind, Target: p.Function.String()}
	return restorepoint.Undo(m.config.Points, change, func(before *Params) error {
		return m.restore(ctx, before)
	})
}

// settle waits for virtual functions that the driver was asked for earlier and may still make: those are a step's too.
func (m *Maker) settle(ctx context.Context, function pci.Address) error {
	if err := m.writer.Settle(ctx, attribute(function, numVFs)); err != nil {
		return fmt.Errorf("virtual functions of %s that were asked for earlier: %w", function, err)
	}
	return nil
}

func (m *Maker) restore(ctx context.Context, p *Params) error {
	if err := m.settle(ctx, p.Function); err != nil {
		return err
	}
	now, err := m.enabled(ctx, p.Function)
	if errors.Is(err, fs.ErrNotExist) || now > 0 && now != p.Count {
		return nil // The card left, or they are another's.
	}
	if err != nil {
		return err
	}
	if now > 0 {
		if err := m.awaitUnused(ctx, p); err != nil {
			return err
		}
		if err := m.writer.Write(ctx, attribute(p.Function, numVFs), "0"); err != nil {
			return fmt.Errorf("remove the virtual functions of %s: %w", p.Function, err)
		}
	}
	for i, s := range p.Before {
		now, err := m.value(p.Function, s.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		// Another value than the step's is somebody else's. xe itself clears some with the virtual functions.
		if now == p.Set[i].Value {
			if err := m.set(ctx, p.Function, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitUnused waits until no virtual function has a user.
func (m *Maker) awaitUnused(ctx context.Context, p *Params) error {
	const pause = 250 * time.Millisecond
	return m.writer.Retry(ctx, ErrInUse, pause, func() error { return m.unused(p.Function) })
}

// unused fails with ErrInUse if a claim holds a virtual function or somebody uses one.
func (m *Maker) unused(function pci.Address) error {
	found, err := VirtualFunctions(m.config.Tree, function)
	if err != nil {
		return err
	}
	points, err := m.config.Points.List()
	err = restorepoint.About(err, func(target string) bool {
		return slices.ContainsFunc(found, func(vf pci.Address) bool { return vf.String() == target })
	})
	if err != nil {
		return err
	}
	var functions []deviceuse.Function
	for _, vf := range found {
		for i := range points {
			if points[i].Step.Target == vf.String() {
				return fmt.Errorf("virtual function %s is %w by another claim", vf, ErrInUse)
			}
		}
		functions = append(functions, deviceuse.Function{Address: vf})
	}
	users, err := deviceuse.Find(m.config.Tree, functions)
	if err != nil || len(users) == 0 {
		return err
	}
	return fmt.Errorf("virtual function %s is %w: %s", users[0].Function, ErrInUse, users[0])
}

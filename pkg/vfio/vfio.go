// SPDX-License-Identifier: Apache-2.0

// Package vfio gives PCI functions to virtual machines: it finds what an IOMMU isolates, and implements the step that binds a function and
// its siblings to a VFIO driver and gives them back to the drivers, and with the driver overrides, that they had.
//
// The order of a function's writes keeps every other driver away from it at any moment: the override first, so that no probing of another
// program can bind a driver that is not meant, then unbind, then bind. A GPU leaves its driver before its audio function does and comes
// back after it, since NVIDIA's driver takes whatever holds the audio function for a sound driver (open-gpu-kernel-modules#1365).
//
// What was seen: the kernel itself with an edu device and NVMe functions in a virtual machine. Not seen on a card
// (docs/design/hardware.md): a GPU's driver that lets go slowly or never, and resets by the driver.
package vfio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/deviceuse"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// StepKind is the kind of the step that binds a function to a VFIO driver.
const StepKind = "pci.bind"

// Params are the parameters of the step.
type Params struct {
	// Function is what the claim gets. It is the step's target.
	Function pci.Address `json:"function"`
	// Claim is the UID of the claim.
	Claim string `json:"claim"`
	// Driver is the VFIO driver to bind.
	Driver string `json:"driver"`
	// Before has the function and its siblings in the group, in the order in which they are bound. Undo restores them.
	Before []Before `json:"before"`
	// Nodes are device nodes of Function that its directory in sysfs does not tell, such as NVIDIA's. A process that has one open is a user.
	Nodes []sysfs.Number `json:"nodes,omitempty"`
}

// Before is what a function was before it was bound. Driver and Override are empty if it had none.
type Before struct {
	Address  pci.Address `json:"address"`
	Driver   string      `json:"driver,omitempty"`
	Override string      `json:"override,omitempty"`
}

var (
	// ErrGone refuses a function that is not there.
	ErrGone = errors.New("is not on this node now")
	// ErrNoIOMMU refuses a function that no IOMMU isolates.
	ErrNoIOMMU = errors.New("is in no IOMMU group: enable the IOMMU in the firmware and on the kernel's command line")
	// ErrNotViable refuses a function whose group has other devices in use.
	ErrNotViable = errors.New("cannot be given to a virtual machine")
	// ErrInUse refuses a function that somebody uses.
	ErrInUse = errors.New("still in use")
	// ErrChanged refuses a function that somebody else bound or marked after the step was planned.
	ErrChanged = errors.New("was changed by another program meanwhile")
)

// Config configures a Binder.
type Config struct {
	Tree  *sysfs.Tree
	Write sysfs.AttrWriter
	// Points keeps what functions were before.
	Points *restorepoint.Store
	// Wait limits how long a step waits for users to go, and for a driver to answer one write. Default DefaultWait.
	Wait time.Duration
	// Clock defaults to the real clock.
	Clock clock.Clock
	// Load loads a kernel module. Nil: a module that is not loaded is an error that says so.
	Load func(ctx context.Context, module string) error
}

// DefaultWait leaves a step the time to undo what it did within the 45 seconds that kubelet waits.
const DefaultWait = 15 * time.Second

// Binder plans, applies and undoes the step. It is safe for concurrent use. The caller must hold the device of a step.
type Binder struct {
	config Config
	writer *sysfs.Bounded
}

// New makes a Binder.
func New(c Config) *Binder {
	c.Wait, c.Clock = cmp.Or(c.Wait, DefaultWait), cmp.Or[clock.Clock](c.Clock, clock.RealClock{})
	return &Binder{config: c, writer: sysfs.NewBounded(c.Write, c.Clock, c.Wait)}
}

// Kinds returns the step kind.
func (b *Binder) Kinds() step.Kinds {
	return step.Kinds{StepKind: {Apply: step.Do(b.apply), Undo: step.Do(b.undo), Verify: step.Do(b.verify)}}
}

// Plan reads what the step must restore and returns it. It changes nothing, except that it has the driver's module loaded if Config.Load is
// set. It refuses a function without an IOMMU group, or whose group is not viable.
func (b *Binder) Plan(ctx context.Context, function pci.Address, claim string, nodes []sysfs.Number) (step.Step, error) {
	if p, mine, err := b.config.Points.Own(claim, StepKind, function.String()); mine || err != nil {
		return p.Step, err
	}
	g, err := b.group(function)
	if err != nil {
		return step.Step{}, err
	}
	driver, err := b.driver(ctx, function)
	if err != nil {
		return step.Step{}, err
	}
	p := Params{Function: function, Claim: claim, Driver: driver, Nodes: nodes}
	for _, m := range g.Ours(function) {
		if err := b.config.Points.Check(claim, StepKind, m.Address.String()); err != nil {
			return step.Step{}, err
		}
		override, err := b.overrideOf(ctx, m.Address)
		if err != nil && !isAbsent(err) {
			return step.Step{}, err
		}
		p.Before = append(p.Before, Before{Address: m.Address, Driver: m.Driver, Override: override})
	}
	return step.New(StepKind, function.String(), p)
}

// group reads the group of a function and refuses one that is not viable.
func (b *Binder) group(function pci.Address) (*Group, error) {
	if !b.present(function) {
		return nil, fmt.Errorf("PCI function %s %w", function, ErrGone)
	}
	g, err := ReadGroup(b.config.Tree, function)
	if isAbsent(err) {
		return nil, fmt.Errorf("PCI function %s %w", function, ErrNoIOMMU)
	}
	if err != nil {
		return nil, err
	}
	if obstacles := g.Obstacles(function); len(obstacles) > 0 {
		return nil, fmt.Errorf("PCI function %s %w: %s", function, ErrNotViable, strings.Join(obstacles, "; "))
	}
	return &g, nil
}

// driver chooses the VFIO driver of a function. One that holds the function already stays, as the admin chose it.
func (b *Binder) driver(ctx context.Context, function pci.Address) (string, error) {
	current, err := driverOf(b.config.Tree, function)
	if err != nil || IsVFIODriver(current) {
		return current, err
	}
	aliases, err := ReadAliases(b.config.Tree)
	if err != nil {
		return "", err
	}
	driver, err := aliases.DriverFor(b.config.Tree, function)
	if b.config.Load == nil || !errors.Is(err, ErrNotLoaded) {
		return driver, err
	}
	modalias, err := b.config.Tree.ReadString(sysfs.PCIDevice(function.String()) + "/modalias")
	if err == nil {
		err = b.config.Load(ctx, aliases.Module(modalias))
	}
	if err != nil {
		return "", err
	}
	return aliases.DriverFor(b.config.Tree, function)
}

// apply binds the functions.
func (b *Binder) apply(ctx context.Context, p *Params) error {
	g, err := b.group(p.Function)
	if err != nil {
		return err
	}
	if err := sameFunctions(g.Ours(p.Function), p); err != nil {
		return err
	}
	mine := false
	if _, mine, err = b.config.Points.Mine(p.Claim, StepKind, p.Function.String()); err != nil {
		return err
	}
	for _, f := range p.Before {
		if err := b.config.Points.Check(p.Claim, StepKind, f.Address.String()); err != nil {
			return err
		}
		if err := b.expect(ctx, f, p.Driver); err != nil {
			return err
		}
	}
	// What this claim has bound already is used by its own pod.
	if err := b.awaitUnused(ctx, p, func(driver string) bool { return !mine || driver != p.Driver }); err != nil {
		return err
	}
	st, err := step.New(StepKind, p.Function.String(), p)
	if err != nil {
		return err
	}
	if _, err := b.config.Points.Begin(p.Claim, st); err != nil {
		return err
	}
	for _, f := range p.Before {
		if err := b.bind(ctx, f.Address, p.Driver); err != nil {
			return err
		}
	}
	return nil
}

// sameFunctions refuses a group that has other functions of the device now than when the step was planned.
func sameFunctions(ours []Member, p *Params) error {
	same := len(ours) == len(p.Before)
	for i := range ours {
		same = same && ours[i].Address == p.Before[i].Address
	}
	if same {
		return nil
	}
	return fmt.Errorf("the IOMMU group of %s %w: it has other functions of the device than before", p.Function, ErrChanged)
}

// expect refuses a function that neither is as it was planned nor as this step, cut off at any write, leaves it.
func (b *Binder) expect(ctx context.Context, f Before, driver string) error {
	now, override, err := b.state(ctx, f.Address)
	if err != nil {
		return err
	}
	// A step that was cut off in Undo may have left the former driver's name in the override.
	overrides := []string{f.Override, driver, f.Driver}
	if slices.Contains([]string{f.Driver, "", driver}, now) && slices.Contains(overrides, override) {
		return nil
	}
	return fmt.Errorf("PCI function %s %w: it has the driver %q and the override %q, and had %q and %q",
		f.Address, ErrChanged, now, override, f.Driver, f.Override)
}

// verify checks that the functions are bound as they were. It writes nothing, since a pod may use them.
func (b *Binder) verify(_ context.Context, p *Params) error {
	for _, f := range p.Before {
		now, err := driverOf(b.config.Tree, f.Address)
		if err != nil {
			return err
		}
		if now != p.Driver {
			return fmt.Errorf("PCI function %s %w: it has the driver %q, want %s: delete the pod", f.Address, ErrChanged, now, p.Driver)
		}
	}
	return nil
}

// undo gives the functions back, in the opposite order. A function that left the node took its override with it.
func (b *Binder) undo(ctx context.Context, p *Params) error {
	change := restorepoint.Change{Claim: p.Claim, Kind: StepKind, Target: p.Function.String()}
	return restorepoint.Undo(b.config.Points, change, func(before *Params) error {
		return b.restore(ctx, before)
	})
}

func (b *Binder) restore(ctx context.Context, p *Params) error {
	err := b.awaitUnused(ctx, p, func(driver string) bool { return driver == p.Driver })
	if err != nil {
		return err
	}
	for _, f := range slices.Backward(p.Before) {
		if err := b.giveBack(ctx, f, p.Driver); err != nil {
			return err
		}
	}
	return nil
}

// awaitUnused waits until no function, of those that a driver holds that look says, has a user.
func (b *Binder) awaitUnused(ctx context.Context, p *Params, look func(driver string) bool) error {
	const pause = 250 * time.Millisecond
	return b.writer.Retry(ctx, ErrInUse, pause, func() error {
		users, err := b.users(p, look)
		if err != nil || len(users) == 0 {
			return err
		}
		return fmt.Errorf("%s is not changed: %w: %s: stop it", p.Function, ErrInUse, join(users))
	})
}

func join(users []deviceuse.User) string {
	const most = 3
	var texts []string
	for i, u := range users {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(users)-most))
			break
		}
		texts = append(texts, u.String())
	}
	return strings.Join(texts, "; ")
}

func (b *Binder) users(p *Params, look func(driver string) bool) ([]deviceuse.User, error) {
	var functions []deviceuse.Function
	for _, f := range p.Before {
		driver, err := driverOf(b.config.Tree, f.Address)
		if err != nil {
			return nil, err
		}
		if driver == "" || !look(driver) {
			continue
		}
		of := deviceuse.Function{Address: f.Address}
		if f.Address == p.Function && !IsVFIODriver(driver) {
			of.Nodes = p.Nodes
		}
		if IsVFIODriver(driver) {
			if of.Nodes, err = numbers(b.config.Tree, f.Address); err != nil {
				return nil, err
			}
		}
		functions = append(functions, of)
	}
	if len(functions) == 0 {
		return nil, nil
	}
	return deviceuse.Find(b.config.Tree, functions)
}

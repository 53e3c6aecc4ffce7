// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Plan makes the steps for the claim's parts, and for the GPUs of which other claims could have parts.
func (f *Feature) Plan(ctx context.Context, r prepare.Request) (prepare.Contribution, error) {
	var c prepare.Contribution
	for i := range r.Allocation.Results {
		result := &r.Allocation.Results[i]
		dev, ok := r.Find(result)
		if !ok || result.Kind != device.KindGPU || result.AdminAccess {
			continue
		}
		steps, err := f.steps(ctx, &r, result, &dev)
		if err != nil {
			return c, err
		}
		c.Steps = append(c.Steps, steps...)
	}
	return c, nil
}

// steps returns the steps that make what a result has.
func (f *Feature) steps(ctx context.Context, r *prepare.Request, result *claim.Result, dev *device.Device) ([]step.Step, error) {
	d := f.decided.Load()
	if d == nil {
		return nil, errNotDecided
	}
	part, isPart := d.parts[dev.Name]
	on := d.cards[dev.Name]
	if isPart {
		on = d.cards[part.Parent]
	}
	switch {
	case on == nil:
		return nil, nil // nobody divides the GPU
	case (!isPart || part.Type == device.TypeMIG) && len(dev.Edits.Nodes) == 0:
		f.Requery.Send()
		return nil, fmt.Errorf("GPU %s has no device nodes: a virtual machine had it, and its own driver was not seen to have it back; "+
			"the machine is looked at again now, and the claim retried", dev.Name)
	case !isPart:
		return on.whole()
	case part.Type == device.TypeMIG:
		return on.instance(dev.Name, &part)
	case part.Type == device.TypePartition:
		return one(on.mode(computeMode(part.Profile)))
	case part.Type == device.TypeVFIO:
		return f.passthrough(ctx, r, result, on)
	}
	return nil, nil // a virtual function is there
}

func one(s step.Step, err error) ([]step.Step, error) { return []step.Step{s}, err }

// whole returns the steps that make a GPU whole.
func (c *card) whole() ([]step.Step, error) {
	switch {
	case c.switchesMIG():
		return one(c.migMode(false))
	case c.AMD != nil && c.settings.AMD != nil && c.settings.AMD.Compute != "":
		return one(c.mode("SPX"))
	}
	return nil, nil
}

// instance returns the steps that make an instance. One that stands is there.
func (c *card) instance(name string, part *partition.Part) ([]step.Step, error) {
	if c.stands(name, part) {
		return nil, nil
	}
	w := c.place(name, part.Profile, part.ProfileID, part.Placement)
	made, err := w.Step()
	if err != nil || !c.switchesMIG() {
		return []step.Step{made}, err
	}
	on, err := c.migMode(true)
	return []step.Step{on, made}, err
}

// stands says whether an instance outlives its claims: one of a static layout, also while a reboot has ended it, or one of a former layout
// of which claims have shares. The end of one of them must not destroy it under the others; the node destroys it after the last.
func (c *card) stands(name string, part *partition.Part) bool {
	return part.Instance != nil || c.shares[name] || slices.ContainsFunc(c.division.Create, func(s partition.Slot) bool {
		return s.ProfileID == part.ProfileID && s.Placement == part.Placement
	})
}

// place is the place of an instance as its step is told it.
func (c *card) place(name, profile string, id uint32, at nvml.MIGPlacement) *mig.Partition {
	return &mig.Partition{
		Device: name, Parent: c.uuid(), PCIAddress: c.Address, ProfileID: id, Profile: profile, Start: at.Start, Size: at.Size,
	}
}

func (c *card) uuid() string { return device.StringOf(c.Device.Attributes[device.AttributeUUID]) }

func (c *card) migMode(on bool) (step.Step, error) {
	return (&mig.Mode{Parent: c.uuid(), PCIAddress: c.Address, On: on}).Step()
}

func (c *card) mode(compute string) (step.Step, error) {
	return (&amdmode.Params{Function: c.Address, Mode: compute}).Step()
}

// computeMode returns the kernel's word for the compute mode of a profile such as cpx-nps4.
func computeMode(profile string) string {
	compute, _, _ := strings.Cut(profile, "-")
	return strings.ToUpper(compute)
}

// passthrough returns the steps that give a GPU to a virtual machine.
func (f *Feature) passthrough(ctx context.Context, r *prepare.Request, result *claim.Result, c *card) ([]step.Step, error) {
	if err := result.CheckPassthrough(r.Claim); err != nil {
		return nil, err
	}
	if err := f.points.Make(); err != nil {
		return nil, err
	}
	var nodes []sysfs.Number
	for _, n := range c.Device.Edits.Nodes {
		if discover.SharedNode(n) {
			continue
		}
		nodes = append(nodes, sysfs.Number{Major: n.Major, Minor: n.Minor})
	}
	bind, err := f.binder.Plan(ctx, c.Address, string(r.Claim.UID), nodes)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", result.Device, err)
	}
	first, err := c.whole()
	return append(first, bind), err
}

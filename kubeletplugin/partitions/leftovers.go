// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// Leftovers returns the steps to undo for a device of a claim whose record is lost.
func (f *Feature) Leftovers(_ context.Context, uid string, dev device.Device) ([]step.Step, error) {
	if dev.Kind != device.KindGPU {
		return nil, nil
	}
	var steps []step.Step
	held, err := f.mig.HeldIn(dev.Name)
	if err != nil {
		return nil, err
	}
	if held != nil && !f.stands(dev.Name) {
		s, err := held.Step()
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	points, err := f.points.List()
	for _, p := range points {
		if p.Claim == uid && p.Step.Kind == vfio.StepKind {
			steps = append(steps, p.Step)
		}
	}
	return steps, restorepoint.About(err, func(target string) bool {
		address, known := f.decided.Load().addressOf(dev.Name)
		return !known || address == target
	})
}

// addressOf returns the PCI address of the GPU that a device is, or is a part of.
func (d *decision) addressOf(name string) (address string, known bool) {
	if d == nil {
		return "", false
	}
	if part, ok := d.parts[name]; ok {
		name = part.Parent
	}
	c := d.cards[name]
	if c == nil {
		return "", false
	}
	return c.Address.String(), true
}

// stands says whether a device is an instance that outlives its claims.
func (f *Feature) stands(name string) bool {
	d := f.decided.Load()
	if d == nil {
		return false
	}
	part, ok := d.parts[name]
	return ok && d.cards[part.Parent].stands(name, &part)
}

// Orphans returns the GPUs that are bound for virtual machines of claims which have no record any more.
func (f *Feature) Orphans(context.Context) []prepare.Orphan {
	points, _ := f.points.List() // the next Review reports what cannot be read
	d := f.decided.Load()
	if d == nil {
		return nil
	}
	var out []prepare.Orphan
	for _, p := range points {
		if p.Step.Kind != vfio.StepKind {
			continue
		}
		for name, part := range d.parts {
			if c := d.cards[part.Parent]; part.Type == device.TypeVFIO && c.Address.String() == p.Step.Target {
				out = append(out, prepare.Orphan{UID: p.Claim, Device: device.Device{Kind: device.KindGPU, Name: name}})
			}
		}
	}
	slices.SortFunc(out, func(a, b prepare.Orphan) int { return strings.Compare(a.UID, b.UID) })
	return out
}

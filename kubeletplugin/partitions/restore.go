// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
)

// The modes of a GPU outlive the claim whose step switched them, since other claims may need them too. So the node has the restore point:
// its step switches back, and is applied once no policy holds for the GPU and no claim has anything of it.

// remembering writes the restore point of a GPU's mode before a step switches it. former returns the step that switches back, and false if
// the GPU is as the step wants it.
func (f *Feature) remembering(kind step.Kind, former func(params json.RawMessage) (step.Step, bool, error)) step.Kind {
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		back, differs, err := former(params)
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
func (f *Feature) formerMode(params json.RawMessage) (step.Step, bool, error) {
	m, err := step.Decode[mig.Mode](params)
	if err != nil {
		return step.Step{}, false, err
	}
	c := f.decided.Load().at(m.PCIAddress)
	if c == nil || c.MIG == nil || c.MIG.Current == m.On {
		return step.Step{}, false, nil
	}
	back, err := c.migMode(c.MIG.Current)
	return back, true, err
}

// formerCompute is for steps that switch the compute mode of an AMD GPU.
func (f *Feature) formerCompute(params json.RawMessage) (step.Step, bool, error) {
	m, err := step.Decode[amdmode.Params](params)
	if err != nil {
		return step.Step{}, false, err
	}
	c := f.decided.Load().at(m.Function)
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

// left is what policies had made of the node's GPUs, and what their claims' steps switched.
type left struct {
	instances []mig.Held
	points    []restorepoint.Point
}

// left lists what is left of policies, of the instances that are held. What cannot be read stays for the next Review, which reports it.
func (f *Feature) left(held []mig.Held) left {
	points, _ := f.points.List()
	return left{instances: held, points: slices.DeleteFunc(points, func(p restorepoint.Point) bool { return p.Claim != nodeClaim })}
}

// of returns what is left on one GPU.
func (l left) of(address pci.Address) left {
	var out left
	for _, h := range l.instances {
		if h.PCIAddress == address {
			out.instances = append(out.instances, h)
		}
	}
	for _, p := range l.points {
		if p.Step.Target == address.String() {
			out.points = append(out.points, p)
		}
	}
	return out
}

func (l left) empty() bool { return len(l.instances)+len(l.points) == 0 }

// takeBack lists the changes that leave a GPU as it was before any policy held for it. Instances come first, since the mode cannot change
// before.
func (f *Feature) takeBack(l left) []job {
	var jobs []job
	for _, h := range l.instances {
		jobs = append(jobs, func(ctx context.Context) error { return f.mig.Destroy(ctx, &h.Partition) })
	}
	for _, p := range l.points {
		jobs = append(jobs, func(ctx context.Context) error {
			if p.Step.Kind == sriov.StepKind {
				return f.maker.Kinds().Undo(ctx, p.Step)
			}
			if err := f.Kinds().Apply(ctx, p.Step); err != nil {
				return err
			}
			return f.points.End(nodeClaim, p.Step.Kind, p.Step.Target)
		})
	}
	return jobs
}

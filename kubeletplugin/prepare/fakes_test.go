// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// presetsName is the name of the feature of tests that adds edits.
const presetsName = "words"

// fakeFeature is a feature whose parts a test gives. A part that is nil does nothing.
type fakeFeature struct {
	name      string
	plan      func(ctx context.Context, r Request) (Contribution, error)
	kinds     step.Kinds
	leftovers func(ctx context.Context, uid string, d device.Device) ([]step.Step, error)
	orphans   func() []Orphan
	settle    func(r *claim.Result)
	fetch     func(r *Request) func(context.Context) error
	restore   func(ctx context.Context) error
	claims    func() []string
}

func (f *fakeFeature) Name() string { return f.name }

func (f *fakeFeature) Plan(ctx context.Context, r Request) (Contribution, error) {
	if f.plan == nil {
		return Contribution{}, nil
	}
	return f.plan(ctx, r)
}

func (f *fakeFeature) Kinds() step.Kinds { return f.kinds }

func (f *fakeFeature) Leftovers(ctx context.Context, uid string, d device.Device) ([]step.Step, error) {
	if f.leftovers == nil {
		return nil, nil
	}
	return f.leftovers(ctx, uid, d)
}

func (f *fakeFeature) Orphans(context.Context) []Orphan {
	if f.orphans == nil {
		return nil
	}
	return f.orphans()
}

func (f *fakeFeature) Fetch(r *Request) func(context.Context) error {
	if f.fetch == nil {
		return nil
	}
	return f.fetch(r)
}

func (f *fakeFeature) Restore(ctx context.Context, _ *record.Record) error {
	if f.restore == nil {
		return nil
	}
	return f.restore(ctx)
}

func (f *fakeFeature) Claims() ([]string, error) {
	if f.claims == nil {
		return nil, nil
	}
	return f.claims(), nil
}

func (f *fakeFeature) Settle(r *claim.Result, _ device.Device) {
	if f.settle != nil {
		f.settle(r)
	}
}

// lending lends the directories of host devices, with the real step or what a test makes of it.
func lending(root string, kind step.Kind) *fakeFeature {
	return &fakeFeature{
		name: "hostDirectories", kinds: step.Kinds{hostdir.StepKind: kind},
		plan: func(_ context.Context, r Request) (c Contribution, err error) {
			for i := range r.Allocation.Results {
				result := &r.Allocation.Results[i]
				if result.AdminAccess || result.Config.Host == nil || result.Config.Host.OnRelease != v1alpha1.OnReleaseEmpty {
					continue
				}
				dev, _ := r.Find(result)
				for _, mount := range dev.Edits.Mounts {
					s, known := r.EarlierStep(step.Step{Kind: hostdir.StepKind, Target: mount.HostPath})
					if !known {
						if s, err = hostdir.Plan(root, mount.HostPath, string(r.Claim.UID)); err != nil {
							return c, err
						}
					}
					c.Steps = append(c.Steps, s)
				}
			}
			return c, nil
		},
		leftovers: func(_ context.Context, uid string, d device.Device) ([]step.Step, error) {
			var out []step.Step
			if d.Kind != device.KindHost {
				return nil, nil
			}
			for _, mount := range d.Edits.Mounts {
				s, err := hostdir.PlanUndo(root, mount.HostPath, uid)
				if isNotExist(err) || errors.Is(err, hostdir.ErrNotScratch) {
					continue
				}
				if err != nil {
					return nil, err
				}
				out = append(out, s)
			}
			return out, nil
		},
	}
}

// fakeHealth has nothing against any device before a test says what.
type fakeHealth struct {
	check      func(c *resourceapi.ResourceClaim, r *claim.Result) error
	quarantine func(r *record.Record, cause error)
	clear      func(r *record.Record)
}

func (h *fakeHealth) Check(c *resourceapi.ResourceClaim, r *claim.Result) error {
	if h.check == nil {
		return nil
	}
	return h.check(c, r)
}

func (h *fakeHealth) Quarantine(r *record.Record, cause error) {
	if h.quarantine != nil {
		h.quarantine(r, cause)
	}
}

func (h *fakeHealth) Clear(r *record.Record) {
	if h.clear != nil {
		h.clear(r)
	}
}

// fakeObserver hands on what it is told.
type fakeObserver struct {
	incident func(ctx context.Context, i Incident)
	released func(r *record.Record)
	// deleted counts the calls of DeletedChanged.
	deleted atomic.Int32
	// held counts the calls of Held.
	held atomic.Int32
}

func (o *fakeObserver) Held(context.Context, *resourceapi.ResourceClaim, *record.Record) {
	o.held.Add(1)
}

func (o *fakeObserver) DeletedChanged() { o.deleted.Add(1) }

func (o *fakeObserver) Incident(ctx context.Context, i Incident) {
	if o.incident != nil {
		o.incident(ctx, i)
	}
}

func (o *fakeObserver) Released(r *record.Record) {
	if o.released != nil {
		o.released(r)
	}
}

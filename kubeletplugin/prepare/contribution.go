// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// contributions adds what the features give. Within a boot that is decided once: an object that was changed since counts for the next
// claim. In a later boot the decisions still hold, and what they mean on the host is looked up again.
func (e *Engine) contributions(ctx context.Context, p *plan, in asked, old *record.Record, machine Machine) error {
	if old != nil && old.BootID == e.BootID {
		return e.keepContributions(p, old)
	}
	edits := map[string]Edits{}
	var errs []error
	for _, f := range e.Features {
		c, err := f.Plan(ctx, request(f, in, old, machine))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.take(f.Name(), &c, edits)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.give(edits)
}

// request is what a feature plans for.
func request(f Feature, in asked, old *record.Record, machine Machine) Request {
	r := Request{Claim: in.claim, Allocation: in.allocation, Siblings: in.siblings, Find: func(result *claim.Result) (device.Device, bool) {
		return machine.Find(result.Kind, result.Device)
	}}
	if old == nil {
		return r
	}
	r.Again, r.Decision = true, old.Decisions[f.Name()]
	kinds := f.Kinds()
	for i := range old.Steps {
		if _, own := kinds[old.Steps[i].Kind]; own {
			r.Earlier = append(r.Earlier, old.Steps[i].Step)
		}
	}
	return r
}

// take adds one feature's contribution to the plan, and its edits to those of the other features.
func (p *plan) take(feature string, c *Contribution, edits map[string]Edits) {
	for request, more := range c.Edits {
		sum := edits[request]
		sum.Shared, sum.Own = sum.Shared.With(more.Shared), sum.Own.With(more.Own)
		edits[request] = sum
	}
	for _, s := range c.Steps {
		if !contains(p.record.Steps, s) { // requests of a claim may need the same
			add(p.record, s)
		}
	}
	if c.Decision == nil {
		return
	}
	if p.record.Decisions == nil {
		p.record.Decisions = map[string]json.RawMessage{}
	}
	p.record.Decisions[feature] = c.Decision
}

// give hands each request's edits to the first of its devices: the others would only repeat them.
func (p *plan) give(edits map[string]Edits) error {
	for i := range p.record.Devices {
		base := resourceclaim.BaseRequestRef(p.record.Devices[i].Request)
		found, ok := edits[base]
		if !ok {
			continue
		}
		delete(edits, base)
		if found.Empty() {
			continue
		}
		if err := p.addition(&p.record.Devices[i], found.Shared, found.Own); err != nil {
			return fmt.Errorf("request %s: %w", base, err)
		}
	}
	if len(edits) > 0 {
		return fmt.Errorf("edits were planned for requests %v, of which the claim has no device", slices.Sorted(maps.Keys(edits)))
	}
	return nil
}

// addition adds edits to a device. Those that other claims may have, too, are a spec of their own.
func (p *plan) addition(d *record.Device, shared, own container.Edits) error {
	added := &record.Addition{Edits: shared, Own: own}
	d.Added = added
	if !own.Empty() {
		p.own(own, func(name string) { added.OwnDevice = name })
	}
	if shared.Empty() {
		return nil
	}
	spec, err := cdi.Common(shared)
	if err != nil {
		return err
	}
	added.CDIDevice = spec.Device
	p.specs = append(p.specs, spec)
	return nil
}

// keepContributions takes over what a record has. A spec that another version of Fettle wrote in its own way stays as long as it is there.
func (e *Engine) keepContributions(p *plan, old *record.Record) error {
	p.record.Decisions = old.Decisions
	for i := range old.Steps {
		if old.Steps[i].Kind != cdi.StepKind {
			add(p.record, old.Steps[i].Step)
		}
	}
	for i := range old.Devices {
		before := old.Devices[i].Added
		if before == nil {
			continue
		}
		specs, d := len(p.specs), &p.record.Devices[i]
		if err := p.addition(d, before.Edits, before.Own); err != nil {
			return fmt.Errorf("request %s: %w", old.Devices[i].Request, err)
		}
		if before.CDIDevice != "" && d.Added.CDIDevice != before.CDIDevice && e.Specs.Has(before.CDIDevice) {
			d.Added.CDIDevice, p.specs = before.CDIDevice, p.specs[:specs]
		}
	}
	return nil
}

// promise is a CDI device that kubelet was told of, and what it means.
type promise struct {
	name  string
	edits *container.Edits
}

// shared are the CDI devices of a record that are in files of their own, which other claims may use, too.
func shared(r *record.Record) []promise {
	var out []promise
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.CDIDevice != "" && !own(d.CDIDevice) {
			out = append(out, promise{d.CDIDevice, &d.Edits})
		}
		if d.Added != nil && d.Added.CDIDevice != "" {
			out = append(out, promise{d.Added.CDIDevice, &d.Added.Edits})
		}
	}
	return out
}

func add(r *record.Record, s step.Step) {
	r.Steps = append(r.Steps, record.Step{Step: s, State: step.Intended})
}

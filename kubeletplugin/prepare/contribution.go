// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// addContributions adds the contributions of the features to the plan. Within a boot they are decided once: a later change of an object
// counts for the next claim. In a later boot the decisions still hold, and the features look up again what these mean on the host.
func (e *Engine) addContributions(ctx context.Context, p *plan, in input, old *record.Record, machine Machine) error {
	if old != nil && old.BootID == e.BootID {
		return e.keepContributions(p, old)
	}
	edits := map[string]Edits{}
	mounts := deviceMounts(p.record)
	var errs []error
	for _, f := range e.Features {
		c, err := f.Plan(ctx, requestFor(f, p.record, in, old, machine))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.addContribution(f.Name(), &c, edits)
		mounts = append(mounts, featureMounts(f.Name(), c.Edits)...)
	}
	if old == nil { // what a claim had in an earlier boot, it keeps
		errs = append(errs, conflict.Mounts(mounts))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return e.assignEdits(p, edits)
}

// fetch has the features fetch what they need to plan a claim, before anything is locked. A claim that was planned in this boot needs
// nothing. Files are fetched for as long as it takes, and the next call finds them.
func (e *Engine) fetch(op *operation, in *input) error {
	old, err := e.Store.Load(op.uid)
	if err != nil || e.mustRelease(old, in.allocation) { // planned as a claim that has nothing
		old = nil
	}
	machine := e.Machine()
	if old != nil && old.BootID == e.BootID || machine == nil {
		return nil
	}
	planned := &record.Record{Namespace: in.claim.Namespace, Name: in.claim.Name, UID: op.uid}
	if err := e.setTenant(op.ctx, planned, *in, old); err != nil {
		return err
	}
	in.namespaceUID = planned.NamespaceUID
	var fetches []func(context.Context) error
	for _, f := range e.Features {
		fetcher, ok := f.(Fetcher)
		if !ok {
			continue
		}
		r := requestFor(f, planned, *in, old, machine)
		if fetch := fetcher.Fetch(&r); fetch != nil {
			fetches = append(fetches, fetch)
		}
	}
	if len(fetches) == 0 {
		return nil
	}
	if err := op.detach(); err != nil {
		return err
	}
	op.setActivity("fetches what it needs")
	for _, fetch := range fetches {
		if err := fetch(op.ctx); err != nil {
			return err
		}
	}
	return nil
}

// requestFor returns the Request to a feature.
func requestFor(f Feature, planned *record.Record, in input, old *record.Record, machine Machine) Request {
	r := Request{
		Claim: in.claim, NamespaceUID: planned.NamespaceUID, Allocation: in.allocation, Siblings: in.siblings,
		Find: func(result *claim.Result) (device.Device, bool) { return machine.Find(result.Kind, result.Device) },
	}
	if old == nil {
		return r
	}
	r.AfterReboot, r.Decision = true, old.Decisions[f.Name()]
	kinds := f.Kinds()
	for i := range old.Steps {
		if _, own := kinds[old.Steps[i].Kind]; own {
			r.Earlier = append(r.Earlier, old.Steps[i].Step)
		}
	}
	return r
}

// addContribution adds one feature's contribution to the plan, and its edits to those of the other features.
func (p *plan) addContribution(feature string, c *Contribution, edits map[string]Edits) {
	for request, more := range c.Edits {
		sum := edits[request]
		sum.Shared, sum.Own = sum.Shared.With(more.Shared), sum.Own.With(more.Own)
		edits[request] = sum
	}
	addMissing(p.record, c.Steps) // two requests of a claim may need the same step
	if c.Decision == nil {
		return
	}
	if p.record.Decisions == nil {
		p.record.Decisions = map[string]json.RawMessage{}
	}
	p.record.Decisions[feature] = c.Decision
}

// assignEdits gives each request's edits to the first of its devices. The other devices would only repeat them.
func (e *Engine) assignEdits(p *plan, edits map[string]Edits) error {
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
		if err := e.addEdits(p, &p.record.Devices[i], record.Addition{Edits: found.Shared, Own: found.Own}); err != nil {
			return fmt.Errorf("request %s: %w", base, err)
		}
	}
	if len(edits) > 0 {
		return fmt.Errorf("edits were planned for requests %v, of which the claim has no device", slices.Sorted(maps.Keys(edits)))
	}
	return nil
}

// addEdits adds edits to a device. The shared edits get a spec of their own. Edits that have a name already keep it.
func (e *Engine) addEdits(p *plan, d *record.Device, named record.Addition) error {
	added := &record.Addition{Edits: named.Edits, Own: named.Own}
	d.Added = added
	if !named.Own.Empty() {
		p.addOwnEdits(cdi.Own{Edits: named.Own, Name: named.OwnDevice}, func(name string) { added.OwnDevice = name })
	}
	if named.Edits.Empty() {
		return nil
	}
	name, err := e.addCommonSpec(p, named.Edits, named.CDIDevice)
	added.CDIDevice = name
	return err
}

// addCommonSpec adds the common spec of edits to the plan and returns its name. It is the recorded one, unless that is empty.
func (e *Engine) addCommonSpec(p *plan, edits container.Edits, recorded string) (string, error) {
	spec, there, err := e.specs.common(edits, recorded)
	if err != nil {
		return "", err
	}
	if !there {
		p.specs = append(p.specs, spec)
	}
	return spec.Device, nil
}

// keepContributions copies the contributions of a record, with the names of their CDI devices.
func (e *Engine) keepContributions(p *plan, old *record.Record) error {
	p.record.Decisions = old.Decisions
	for i := range old.Steps {
		if old.Steps[i].Kind != cdi.StepKind {
			addStep(p.record, old.Steps[i].Step)
		}
	}
	for i := range old.Devices {
		before := old.Devices[i].Added
		if before == nil {
			continue
		}
		if err := e.addEdits(p, &p.record.Devices[i], *before); err != nil {
			return fmt.Errorf("request %s: %w", old.Devices[i].Request, err)
		}
	}
	return nil
}

// deviceMounts lists the mounts of a claim's devices.
func deviceMounts(r *record.Record) []conflict.Mount {
	var out []conflict.Mount
	for i := range r.Devices {
		for _, m := range r.Devices[i].Edits.Mounts {
			out = append(out, conflict.Mount{Mount: m, Giver: "device " + r.Devices[i].Name})
		}
	}
	return out
}

// featureMounts lists the mounts of a feature's contribution.
func featureMounts(feature string, edits map[string]Edits) []conflict.Mount {
	var out []conflict.Mount
	for request, added := range edits {
		for _, m := range slices.Concat(added.Shared.Mounts, added.Own.Mounts) {
			giver := cmp.Or(added.Givers[m.ContainerPath], "the feature "+feature+" for request "+request)
			out = append(out, conflict.Mount{Mount: m, Feature: feature, Giver: giver})
		}
	}
	return out
}

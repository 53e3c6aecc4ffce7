// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// input is what a Prepare gets.
type input struct {
	claim      *resourceapi.ResourceClaim
	siblings   []*resourceapi.ResourceClaim
	allocation claim.Allocation
	// reading is what was read of the claim's record when its allocation was resolved.
	reading record.Reading
	// recorded says that the allocation was resolved with the policies in it alone, because the claim holds its devices.
	recorded bool
	// cards are the locks of the chips of its regions that the Prepare holds.
	cards []string
	// namespaceUID is the UID of the claim's namespace, if it was read before the plan.
	namespaceUID string
}

// Resolve returns what a claim holds, under the policies that Prepare applies.
func (e *Engine) Resolve(ctx context.Context, c *resourceapi.ResourceClaim) (claim.Allocation, error) {
	allocation, _, err := e.resolve(ctx, c, &record.Reading{})
	return allocation, err
}

// resolve resolves an allocation. Policies are read from the classes as they are now, unless the claim holds its devices since this boot:
// that was decided, and an edit of a class must not stop the pod. recorded reports the latter. reading becomes what it read of the record.
func (e *Engine) resolve(
	ctx context.Context, c *resourceapi.ResourceClaim, reading *record.Reading,
) (a claim.Allocation, recorded bool, err error) {
	in := claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: e.Node}
	if old, err := reading.Load(e.Store, string(c.UID)); err == nil {
		a, err := claim.Resolve(in)
		if err != nil || isHeldIn(e.BootID, old, a) {
			return a, true, err
		}
		in.Prepared = wasPrepared(old, a)
	}
	if in.Classes, err = e.Classes(ctx, claim.ClassNames(in)); err != nil {
		return claim.Allocation{}, false, fmt.Errorf("read the classes of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	a, err = claim.Resolve(in)
	return a, false, err
}

// fetch has the features fetch what they need to plan a claim, before anything is locked. A claim that was planned in this boot needs what
// it lost. Files are fetched for as long as it takes, and the next call finds them.
func (e *Engine) fetch(op *operation, in *input) error {
	old, err := op.reading.Load(e.Store, op.uid)
	if err != nil || e.mustRelease(old, in.allocation) { // planned as a claim that has nothing
		old = nil
	}
	if e.begunEarlier(old) {
		return nil
	}
	if old != nil && old.BootID == e.BootID {
		if len(old.Steps) == 0 || interrupted(old) && e.isLocked(op.uid) { // no effect needs a file, or another process fetched them
			return nil
		}
		return runFetches(op, func(ctx context.Context) error { return e.Features.restore(ctx, old) })
	}
	machine := e.Machine()
	if machine == nil {
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
	return runFetches(op, fetches...)
}

// isLocked reports whether somebody works on a claim, or that cannot be told.
func (e *Engine) isLocked(uid string) bool {
	hold, err := e.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return true
	}
	hold.Release()
	return false
}

// runFetches fetches files for an operation, which may take longer than its call.
func runFetches(op *operation, fetches ...func(context.Context) error) error {
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

// mustRelease reports whether the claim must be released before it is prepared: it is half released, or holds other devices.
func (e *Engine) mustRelease(old *record.Record, a claim.Allocation) bool {
	return old.Phase == record.Releasing || e.releases.isUnrecorded(old.UID) || !matchesAllocation(old, a)
}

// plan decides everything and changes nothing. A step in the claim's old record stays as recorded, since its parameters hold the state from
// before the step.
func (e *Engine) plan(ctx context.Context, in input, old *record.Record) (plan, error) {
	c, a := in.claim, in.allocation
	r := &record.Record{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), BootID: e.BootID}
	p := plan{record: r, specs: e.specs, check: func() error { return e.checkHealth(in) }}
	machine := e.Machine()
	if machine == nil {
		return plan{}, errNotScanned
	}
	unlocked := func(card string) bool { return !slices.Contains(in.cards, card) }
	if slices.ContainsFunc(conflict.CardLocks(machine, a), unlocked) {
		return plan{}, errShownLate
	}
	if err := e.setTenant(ctx, r, in, old); err != nil {
		return plan{}, err
	}
	for i := range a.Results {
		if err := e.planDevice(&p, in, &a.Results[i], old, machine); err != nil {
			return plan{}, err
		}
	}
	if err := e.addContributions(ctx, &p, in, old, machine); err != nil {
		return plan{}, err
	}
	if err := p.addSpecStep(); err != nil {
		return plan{}, err
	}
	r.Phase = record.Prepared
	if len(r.Steps) > 0 {
		r.Phase = record.Intended
	}
	return p, nil
}

// checkHealth refuses a claim one of whose devices it must not get now.
func (e *Engine) checkHealth(in input) error {
	for i := range in.allocation.Results {
		if err := e.Health.Check(in.claim, &in.allocation.Results[i]); err != nil {
			return err
		}
	}
	return nil
}

// setTenant notes the namespace of a claim with regions by its UID, since a namespace that was deleted and made again is another tenant.
// A claim stays the tenant that its record says.
func (e *Engine) setTenant(ctx context.Context, r *record.Record, in input, old *record.Record) (err error) {
	hasRegion := func(r claim.Result) bool { return r.Config.FPGA != nil && !r.AdminAccess }
	switch {
	case old != nil:
		r.NamespaceUID = old.NamespaceUID
	case in.namespaceUID != "":
		r.NamespaceUID = in.namespaceUID
	case slices.ContainsFunc(in.allocation.Results, hasRegion):
		r.NamespaceUID, err = e.NamespaceUID(ctx, r.Namespace)
	}
	return err
}

// planDevice adds one of the allocated devices to the plan.
func (e *Engine) planDevice(p *plan, in input, result *claim.Result, old *record.Record, machine Machine) error {
	if old == nil { // the claim holds nothing yet
		if err := e.Health.Check(in.claim, result); err != nil {
			return err
		}
	}
	dev, ok := machine.Find(result.Kind, result.Device)
	if !ok {
		return e.records.gone(result.Pool, result.Device)
	}
	if old == nil {
		if err := e.records.conflicts(machine).CoTenancy(p.record, result, dev); err != nil {
			return err
		}
	}
	e.Features.settle(result, dev)
	if old != nil && old.BootID == e.BootID {
		return p.addDevice(result, dev, &old.Devices[len(p.record.Devices)])
	}
	return p.addDevice(result, dev, nil)
}

// addContributions adds the contributions of the features to the plan. Within a boot they are decided once: a later change of an object
// counts for the next claim. In a later boot the decisions still hold, and the features look up again what these mean on the host.
func (e *Engine) addContributions(ctx context.Context, p *plan, in input, old *record.Record, machine Machine) error {
	if old != nil && old.BootID == e.BootID {
		return p.keepContributions(old)
	}
	edits := map[string]Edits{}
	var given additions
	given.addDevices(p.record)
	var errs []error
	for _, f := range e.Features {
		c, err := f.Plan(artifact.WithoutNetwork(ctx), requestFor(f, p.record, in, old, machine))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.addContribution(f.Name(), &c, edits)
		given.addFeature(f.Name(), c.Edits)
	}
	if old == nil { // what a claim had in an earlier boot, it keeps
		errs = append(errs, given.conflicts())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.assignEdits(edits)
}

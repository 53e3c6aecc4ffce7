// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// freshFor is how long a call's copy of the claim is trusted if no lock had to be waited for. kubelet's helper reads the claim right before
// the call. Tombstones cover an Unprepare that overtakes the call within that time.
const freshFor = time.Second

// Prepare prepares a claim and returns its record for the answer to kubelet. It may be called again at any time: if the claim has held the
// same devices since this boot, Prepare checks that all effects of the record are in place and returns it. A *PendingError says that the
// work continues in the background. Siblings are the claims of the same call; they may include this claim.
func (e *Engine) Prepare(
	ctx context.Context, c *resourceapi.ResourceClaim, arrived record.Moment, siblings ...*resourceapi.ResourceClaim,
) (*record.Record, error) {
	var reading record.Reading
	allocation, recorded, err := e.resolve(ctx, c, &reading)
	if err != nil {
		return nil, err
	}
	accept := func(op *operation) bool { return matchesAllocation(op.record, allocation) }
	//nolint:contextcheck // the work has its operation's context, which outlives the call's
	return e.operations.do(ctx, string(c.UID), preparing, accept, func(op *operation) (*record.Record, error) {
		return e.prepare(op, input{claim: c, siblings: siblings, allocation: allocation, reading: reading, recorded: recorded}, arrived)
	})
}

// tries is how often one call plans a claim anew.
const tries = 3

// prepare prepares a claim, and again if it gave back what an earlier attempt had, or if the plan needs what was not fetched, as where an
// object changed in between: what the claim needs now is fetched without locks.
func (e *Engine) prepare(op *operation, in input, arrived record.Moment) (*record.Record, error) {
	op.reading = in.reading
	for try := 1; ; try++ {
		r, err := e.prepareOnce(op, in, arrived)
		again := errors.Is(err, errGivenBack) || errors.Is(err, artifact.ErrNotAsked)
		if !again || try == tries {
			return r, err
		}
	}
}

func (e *Engine) prepareOnce(op *operation, in input, arrived record.Moment) (*record.Record, error) {
	a := in.allocation
	if err := e.fetch(op, &in); err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeoutCause(op.ctx, e.Budget, errBudget) // the fetch may have outlived the call
	defer cancel()
	in.cards = conflict.CardLocks(e.Machine(), a)
	hold, old, err := e.records.lock(waiting, op, append(deviceNames(a), in.cards...))
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	if err := hold.CheckArrival(op.ctx, arrived); err != nil {
		return nil, err
	}
	if err := e.checkInput(op.ctx, in, old, hold.Waited || e.Uptime()-arrived.Since > freshFor); err != nil {
		return nil, err
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	if old, err = e.releaseStale(op, a, old); err != nil {
		return nil, fmt.Errorf("give back what the claim held before: %w", err)
	}
	if e.begunEarlier(old) {
		return nil, e.restart(op, old)
	}
	if err := e.scanMoved(waiting, a); err != nil {
		return nil, err
	}
	op.setActivity("plans devices and steps")
	planned, err := e.plan(op.ctx, in, old)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return e.start(op, planned)
	}
	return e.continuePrepare(op, old, planned)
}

// scanMoved has the machine scanned if a device of an allocation is elsewhere than the newest scan found it. What a record says of its
// place would else be wrong, and the next scan would take the claim's specs.
func (e *Engine) scanMoved(ctx context.Context, a claim.Allocation) error {
	machine := e.Machine()
	if machine == nil {
		return nil
	}
	for i := range a.Results {
		d, ok := machine.Find(a.Results[i].Kind, a.Results[i].Device)
		if !ok || d.Place == (container.Place{}) {
			continue
		}
		if now, err := e.PlaceOf(ctx, &d); err != nil || d.Place.Moved(now) {
			return e.ScanAgain(ctx)
		}
	}
	return nil
}

// checkInput refuses input that is out of date: the claim changed while a lock was waited for, or the record that its allocation was
// resolved by is gone.
func (e *Engine) checkInput(ctx context.Context, in input, old *record.Record, late bool) error {
	if late {
		if err := e.checkUnchanged(ctx, in.claim); err != nil {
			return err
		}
	}
	if in.recorded && !isHeldIn(e.BootID, old, in.allocation) {
		return fmt.Errorf("claim %s/%s %w", in.claim.Namespace, in.claim.Name, ErrChanged)
	}
	return nil
}

// checkUnchanged compares the claim with the one in the API server.
func (e *Engine) checkUnchanged(ctx context.Context, c *resourceapi.ResourceClaim) error {
	now, err := e.Claim(ctx, c.Namespace, c.Name)
	if err != nil {
		return fmt.Errorf("read claim %s/%s again: %w", c.Namespace, c.Name, err)
	}
	if now.UID != c.UID || !equality.Semantic.DeepEqual(now.Status.Allocation, c.Status.Allocation) {
		return fmt.Errorf("claim %s/%s %w", c.Namespace, c.Name, ErrChanged)
	}
	return nil
}

// releaseStale releases what the claim holds and its allocation does not name. It returns the record that stays, nil if there is none.
func (e *Engine) releaseStale(op *operation, a claim.Allocation, old *record.Record) (*record.Record, error) {
	if old != nil {
		if !e.mustRelease(old, a) {
			return old, nil
		}
		if err := e.releases.release(op.ctx, op, old); err != nil {
			return nil, err
		}
		op.inDoubt = e.Store.InDoubt(op.uid)
	}
	return nil, e.releaseStaleDevices(op, a)
}

// releaseStaleDevices releases a claim whose record is lost if it holds devices that are not in its allocation: another pod had these. If
// all are in the allocation, that pod may still run, and its effects stay.
func (e *Engine) releaseStaleDevices(op *operation, a claim.Allocation) error {
	more, err := e.records.holdsMore(op.uid, nil)
	if err != nil {
		return err
	}
	if more {
		return fmt.Errorf("its record is damaged, and a device that it holds %w, or is not in the node's configuration; retried until it is back",
			ErrDeviceGone)
	}
	wanted := deviceNames(a)
	if !slices.ContainsFunc(e.records.linked(op, nil), func(d record.Device) bool { return !slices.Contains(wanted, d.Pool+"/"+d.Name) }) {
		return nil
	}
	r, err := e.records.rebuild(op)
	if err != nil {
		return err
	}
	return e.releases.release(op.ctx, op, r)
}

// start prepares a claim that holds nothing yet. The intent is on disk before any effect, so the next process knows all possible effects.
// If a part fails, everything is undone. A claim whose record is lost may have containers that run: it keeps what it holds, as in renew.
func (e *Engine) start(op *operation, p plan) (*record.Record, error) {
	r := p.record
	if op.inDoubt && r.Phase == record.Intended {
		r.Phase = record.Renewing
	}
	if err := e.records.create(op.ctx, r, op.inDoubt); err != nil {
		return nil, e.deleted.explain(err)
	}
	e.releases.setUnrecorded(r.UID, false)
	if op.inDoubt {
		if err := e.Store.ForgetDamaged(r.UID); err != nil {
			return nil, err
		}
	}
	// Whoever lets go of a driver says so first and then looks for records, so this record was seen or the claim is refused here.
	err := p.check()
	if err == nil {
		err = e.complete(op, r, p.shared)
	}
	if err != nil && !op.inDoubt {
		err = errors.Join(err, e.releases.rollBack(op, r))
	}
	return r, err
}

// continuePrepare prepares a claim that already has a record for its allocation.
func (e *Engine) continuePrepare(op *operation, old *record.Record, planned plan) (*record.Record, error) {
	if e.Store.InDoubt(op.uid) { // a process ended, or the power did, after start had made the record again
		if err := e.Store.ForgetDamaged(op.uid); err != nil {
			return nil, err
		}
	}
	switch {
	case old.Phase == record.Intended && old.BootID == e.BootID && sameAnswer(old, planned.record):
		return e.resume(op, old, planned)
	case old.Phase == record.Intended:
		return nil, e.restart(op, old)
	case old.BootID != e.BootID || !sameAnswer(old, planned.record):
		return e.renew(op, old, planned)
	case old.Phase == record.Renewing:
		return e.resume(op, old, planned)
	}
	return old, e.specs.verify(op.ctx, old, planned.shared)
}

// errGivenBack says that an earlier attempt was undone, so that the claim is prepared like one that has nothing.
var errGivenBack = errors.New("what an earlier attempt did is undone: kubelet tries again")

// begunEarlier reports whether a record is of an attempt of an earlier boot, which is undone first, whatever it planned.
func (e *Engine) begunEarlier(old *record.Record) bool {
	return old != nil && old.Phase == record.Intended && old.BootID != e.BootID
}

// restart undoes an attempt of an earlier boot, or for old device numbers. kubelet has no answer of that attempt.
func (e *Engine) restart(op *operation, old *record.Record) error {
	if err := e.releases.release(op.ctx, op, old); err != nil {
		return fmt.Errorf("undo an earlier attempt: %w", err)
	}
	return errGivenBack
}

// resume continues an earlier attempt. If that never succeeded and this one fails, too, everything is undone.
func (e *Engine) resume(op *operation, r *record.Record, p plan) (*record.Record, error) {
	err := e.Store.Acquire(r)
	if err == nil {
		err = e.Features.restore(artifact.WithoutNetwork(op.ctx), r)
	}
	if err == nil {
		err = e.complete(op, r, p.shared)
	}
	if err != nil && r.Phase == record.Intended {
		err = errors.Join(err, e.releases.rollBack(op, r))
	}
	return r, err
}

// renew updates the record of an earlier boot, or of devices that got other numbers. A failure undoes nothing, because the pod may need its
// data: the next call tries again.
func (e *Engine) renew(op *operation, old *record.Record, p plan) (*record.Record, error) {
	r := p.record
	if err := e.Store.Acquire(r); err != nil { // the setting of a share may be another one than before the reboot
		return nil, err
	}
	// Refused before anything is undone: the pod may need it.
	if err := e.records.checkOverlaps(op.ctx, r, func() error { return nil }); err != nil {
		return nil, err
	}
	for i := len(old.Steps) - 1; i >= 0; i-- {
		if s := old.Steps[i].Step; !containsStep(r.Steps, s) {
			op.setActivity("undoes step " + s.String())
			if err := e.releases.undoStep(op.ctx, s, allParts); err != nil {
				return nil, err
			}
		}
	}
	r.Phase = record.Renewing
	if err := e.records.checkOverlaps(op.ctx, r, func() error { return e.Store.Create(r) }); err != nil {
		return nil, err
	}
	return r, e.complete(op, r, p.shared)
}

// complete applies the steps that are not done, writes missing shared specs, and records that the claim is prepared. It records each step
// before it applies the next one, and the last one together with the phase.
func (e *Engine) complete(op *operation, r *record.Record, shared []cdi.Spec) error {
	var changes []record.Change // not yet in the record
	for i := range r.Steps {
		if r.Steps[i].State == step.Done {
			continue
		}
		if len(changes) > 0 {
			if err := e.Store.Advance(r, changes...); err != nil {
				return err
			}
		}
		op.setActivity("applies step " + r.Steps[i].String())
		if err := context.Cause(op.ctx); err != nil {
			return err
		}
		if err := e.kinds.Apply(op.ctx, r.Steps[i].Step); err != nil {
			return err
		}
		changes = []record.Change{{Step: i, State: step.Done}}
	}
	op.setActivity("writes its CDI specs")
	shown, err := shownSpecs(r)
	if err != nil {
		return err
	}
	if err := e.specs.ensure(op.ctx, slices.Concat(shared, shown)); err != nil {
		return err
	}
	if r.Phase == record.Prepared {
		return nil
	}
	if err := e.Store.Advance(r, append(changes, record.Change{Phase: record.Prepared})...); err != nil {
		return err
	}
	e.releases.setRecovering(r, false)
	return nil
}

// Unprepare releases a claim and returns the released record, or nil if the claim had none. Cleanup may continue after the return; the
// devices stay locked until it is done.
func (e *Engine) Unprepare(ctx context.Context, uid string, arrived record.Moment) (*record.Record, error) {
	// A Prepare that arrived between two Unprepares must not take effect after the second, so a later call does not share an earlier result.
	accept := func(op *operation) bool { return op.arrived >= arrived.Since }
	//nolint:contextcheck // the cleanup after the answer uses the operation's context, which outlives the call's
	return e.operations.do(ctx, uid, unpreparing, accept, func(op *operation) (*record.Record, error) {
		op.arrived = arrived.Since
		return e.unprepare(op, arrived, true, func(context.Context) bool { return true })
	})
}

// unprepare releases a claim. With early it returns as soon as the release is certain, before the cleanup. It asks confirm, when nobody
// else can work on the claim any more, whether the claim is still to be released.
func (e *Engine) unprepare(
	op *operation, arrived record.Moment, early bool, confirm func(context.Context) bool,
) (*record.Record, error) {
	hold, r, err := e.records.lock(op.ctx, op, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if op.followUp == nil {
			hold.Release()
		}
	}()
	if !confirm(op.ctx) {
		return nil, errNotLost
	}
	if err := hold.LeaveTombstone(op.ctx, arrived); err != nil {
		// A failing disk must not keep pods from ending. The plugin collects what a late Prepare then leaves.
		klog.FromContext(op.ctx).Error(err, "A late Prepare of this claim may not be refused", "claimUID", op.uid)
	}
	if op.inDoubt {
		if r, err = e.records.rebuild(op); err != nil {
			return nil, err
		}
	}
	if r == nil {
		return nil, nil //nolint:nilnil // documented at Unprepare: nothing was held
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	released := r.Clone() // for the caller
	deferred := early && !op.inDoubt && e.releases.markReleasing(r)
	if deferred {
		_, err = e.releases.undoSteps(op.ctx, op, r, partUndo)
	} else {
		err = e.releases.undo(op.ctx, op, r, allParts)
	}
	if err != nil {
		return r, err
	}
	// The locks are kept meanwhile: the next call for the claim or its devices waits for a moment and finds nothing.
	op.followUp = func() {
		if deferred {
			e.releases.finish(op, r)
		} else if err := e.Store.Remove(r); err != nil {
			klog.FromContext(op.ctx).Error(err, "Cannot remove the record of a released claim until the next pass", "claimUID", op.uid)
		}
		hold.Release()
		e.Observer.Released(r)
	}
	return released, nil
}

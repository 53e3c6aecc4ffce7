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

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// freshFor is how long the claim that a call came with is trusted, if nothing had to be waited for. kubelet's helper reads it right
// before; what overtook the call within a moment is what tombstones are for.
const freshFor = time.Second

// ErrChanged refuses a call whose claim is not what it was when the call came.
var ErrChanged = errors.New("changed while its Prepare waited: kubelet asks again if a pod still needs it")

// Prepare gives a claim its devices and returns what kubelet must know. It may be called again at any time: a claim that holds the
// same devices since this boot is answered from its record, once what the record promises was seen to be there. A *PendingError says
// that it goes on without the caller. Siblings are the claims that came in the
// same call, this one included or not.
func (e *Engine) Prepare(
	ctx context.Context, c *resourceapi.ResourceClaim, arrived record.Moment, siblings ...*resourceapi.ResourceClaim,
) (*record.Record, error) {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: e.Node})
	if err != nil {
		return nil, err
	}
	accept := func(op *operation) bool { return holds(op.record, allocation) }
	//nolint:contextcheck // the work has its operation's context, which outlives the call's
	return e.do(ctx, string(c.UID), preparing, accept, func(op *operation) (*record.Record, error) {
		return e.prepare(op, asked{c, siblings, allocation}, arrived)
	})
}

// asked is what a Prepare is for.
type asked struct {
	claim      *resourceapi.ResourceClaim
	siblings   []*resourceapi.ResourceClaim
	allocation claim.Allocation
}

func (e *Engine) prepare(op *operation, in asked, arrived record.Moment) (*record.Record, error) {
	a := in.allocation
	hold, old, err := e.lock(op.ctx, op, op.uid, append(deviceNames(a), e.cards(a)...))
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	if err := hold.CheckArrival(op.ctx, arrived); err != nil {
		return nil, err
	}
	if hold.Waited || e.Uptime()-arrived.Since > freshFor {
		if err := e.checkUnchanged(op.ctx, in.claim); err != nil {
			return nil, err
		}
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	if old != nil && e.mustEnd(old, a) {
		if err := e.release(op, old); err != nil {
			return nil, fmt.Errorf("give back what the claim held before: %w", err)
		}
		old = nil
	}
	if old == nil {
		if err := e.leaveOthers(op, a); err != nil {
			return nil, fmt.Errorf("give back what the claim held before: %w", err)
		}
	}
	op.is("plans what it gets")
	planned, err := e.plan(op.ctx, in, old)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return e.start(op, planned)
	}
	return e.goOn(op, in, old, planned)
}

// leaveOthers gives back what a claim holds whose record is lost, where that is not what it is to have now: another pod had it. If it
// is the same, that pod may still run, and what it has stays.
func (e *Engine) leaveOthers(op *operation, a claim.Allocation) error {
	wanted := deviceNames(a)
	if !slices.ContainsFunc(e.linked(op, nil), func(d record.Device) bool { return !slices.Contains(wanted, d.Pool+"/"+d.Name) }) {
		return nil
	}
	r, err := e.rebuild(op)
	if err != nil {
		return err
	}
	return e.release(op, r)
}

// goOn prepares a claim that has a record already, for the devices that it has now.
func (e *Engine) goOn(op *operation, in asked, old *record.Record, planned plan) (*record.Record, error) {
	switch {
	case old.Phase == record.Intended && old.BootID == e.BootID && e.sameAnswer(old, planned.record):
		return e.resume(op, old, planned)
	case old.Phase == record.Intended:
		return e.startAnew(op, in, old)
	case old.BootID != e.BootID || !e.sameAnswer(old, planned.record):
		return e.renew(op, old, planned)
	case old.Phase == record.Renewing:
		return e.resume(op, old, planned)
	}
	return old, e.verify(op.ctx, old)
}

// mustEnd says whether what a claim held is given back before it is given anything: because it is half given back, or was other devices.
func (e *Engine) mustEnd(old *record.Record, a claim.Allocation) bool {
	_, unnoted := e.unnoted.Load(old.UID)
	return old.Phase == record.Releasing || unnoted || !holds(old, a)
}

// checkUnchanged compares the claim with the API server's.
func (e *Engine) checkUnchanged(ctx context.Context, c *resourceapi.ResourceClaim) error {
	now, err := e.Claim(ctx, c.Namespace, c.Name)
	if err != nil {
		return fmt.Errorf("look at claim %s/%s again: %w", c.Namespace, c.Name, err)
	}
	if now.UID != c.UID || !equality.Semantic.DeepEqual(now.Status.Allocation, c.Status.Allocation) {
		return fmt.Errorf("claim %s/%s %w", c.Namespace, c.Name, ErrChanged)
	}
	return nil
}

// start prepares a claim that holds nothing yet. What is meant is on disk before anything happens, so that whatever happens next is
// known to the next process; where a part fails, all of it is undone.
func (e *Engine) start(op *operation, p plan) (*record.Record, error) {
	r := p.record
	if err := e.Store.Acquire(r); err != nil {
		return nil, err
	}
	if err := e.Store.Create(r); err != nil {
		return nil, errors.Join(err, e.Store.Remove(r))
	}
	e.unnoted.Delete(r.UID)
	if op.inDoubt {
		if err := e.Store.ForgetDamaged(r.UID); err != nil {
			return nil, errors.Join(err, e.rollBack(op, r))
		}
	}
	if err := e.complete(op, r, p.specs); err != nil {
		return nil, errors.Join(err, e.rollBack(op, r))
	}
	return r, nil
}

// startAnew undoes an attempt of an earlier boot, or for numbers that a device no longer has, and begins again: nobody was told of it.
func (e *Engine) startAnew(op *operation, in asked, old *record.Record) (*record.Record, error) {
	if err := e.release(op, old); err != nil {
		return nil, fmt.Errorf("undo an earlier attempt: %w", err)
	}
	planned, err := e.plan(op.ctx, in, nil)
	if err != nil {
		return nil, err
	}
	return e.start(op, planned)
}

// resume goes on where an earlier attempt stopped. An attempt that never succeeded is undone when this one fails, too.
func (e *Engine) resume(op *operation, r *record.Record, p plan) (*record.Record, error) {
	err := e.Store.Acquire(r)
	if err == nil {
		err = e.restoreNeeds(op.ctx, r)
	}
	if err == nil {
		err = e.complete(op, r, p.specs)
	}
	if err != nil && r.Phase == record.Intended {
		err = errors.Join(err, e.rollBack(op, r))
	}
	return r, err
}

// renew brings the record of an earlier boot, or of devices that got other numbers, up to date. Nothing is undone where a part
// fails: what the claim wrote is its own, and the next call tries again.
func (e *Engine) renew(op *operation, old *record.Record, p plan) (*record.Record, error) {
	if err := e.Store.Acquire(old); err != nil {
		return nil, err
	}
	r := p.record
	for i := len(old.Steps) - 1; i >= 0; i-- {
		if s := old.Steps[i].Step; !contains(r.Steps, s) {
			if err := e.undoStep(op.ctx, s, wholly); err != nil {
				return nil, err
			}
		}
	}
	r.Phase = record.Renewing
	if err := e.Store.Create(r); err != nil {
		return nil, err
	}
	return r, e.complete(op, r, p.specs)
}

// complete applies the steps that are not done, makes sure of the specs, and notes that the claim is prepared. That a step is done is noted
// before the next one begins, and for the last with that.
func (e *Engine) complete(op *operation, r *record.Record, shared []cdi.Spec) error {
	var changes []record.Change // not yet noted
	for i := range r.Steps {
		if r.Steps[i].State == step.Done {
			continue
		}
		if len(changes) > 0 {
			if err := e.Store.Advance(r, changes...); err != nil {
				return err
			}
		}
		op.is("applies step " + r.Steps[i].String())
		if err := context.Cause(op.ctx); err != nil {
			return err
		}
		if err := e.kinds.Apply(op.ctx, r.Steps[i].Step); err != nil {
			return err
		}
		changes = []record.Change{{Step: i, State: step.Done}}
	}
	op.is("writes its CDI specs")
	if err := e.ensure(op.ctx, shared); err != nil {
		return err
	}
	if r.Phase == record.Prepared {
		return nil
	}
	if err := e.Store.Advance(r, append(changes, record.Change{Phase: record.Prepared})...); err != nil {
		return err
	}
	e.setRecovering(r, false)
	return nil
}

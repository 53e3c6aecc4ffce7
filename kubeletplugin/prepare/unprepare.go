// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// rollBack undoes a Prepare that failed. What is cut off by the end of the process is left to the next one.
func (e *Engine) rollBack(op *operation, r *record.Record) error {
	if e.base.Err() != nil {
		return nil
	}
	ctx, cancel := e.outlive(op)
	defer cancel()
	return e.releaseIn(ctx, op, r)
}

// outlive is the context of what goes on after an operation's call has ended, until the engine is stopped.
func (e *Engine) outlive(op *operation) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(op.ctx))
	unstop := context.AfterFunc(e.base, func() { cancel(context.Cause(e.base)) })
	return ctx, func() {
		unstop()
		cancel(nil)
	}
}

// Unprepare gives back what a claim holds and returns what that was. A claim without a record holds nothing: nil, nil. What only makes it
// lasting may follow, and nobody gets the devices before.
func (e *Engine) Unprepare(ctx context.Context, uid string, arrived record.Moment) (*record.Record, error) {
	return e.giveBack(ctx, uid, arrived, true)
}

// giveBack is Unprepare. early: it returns as soon as it is certain what comes of the claim.
func (e *Engine) giveBack(ctx context.Context, uid string, arrived record.Moment, early bool) (*record.Record, error) {
	// What arrived between two of these calls must not come true after the second, so a later call is not done with an earlier one.
	accept := func(op *operation) bool { return op.arrived >= arrived.Since }
	//nolint:contextcheck // what follows the answer has its operation's context, which outlives the call's
	return e.do(ctx, uid, unpreparing, accept, func(op *operation) (*record.Record, error) {
		op.arrived = arrived.Since
		return e.unprepare(op, arrived, early)
	})
}

func (e *Engine) unprepare(op *operation, arrived record.Moment, early bool) (*record.Record, error) {
	hold, r, err := e.lock(op.ctx, op, op.uid, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if op.later == nil {
			hold.Release()
		}
	}()
	if err := hold.LeaveTombstone(op.ctx, arrived); err != nil {
		// A failing disk must not keep pods from ending. What a late Prepare then makes is collected.
		klog.FromContext(op.ctx).Error(err, "A Prepare that was overtaken may not be refused", "claimUID", op.uid)
	}
	if op.inDoubt {
		if r, err = e.rebuild(op); err != nil {
			return nil, err
		}
	}
	if r == nil {
		return nil, nil //nolint:nilnil // documented at Unprepare: nothing was held
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	given := r.Clone() // the caller's
	promised := early && !op.inDoubt && e.promise(r)
	if promised {
		_, err = e.undoSteps(op.ctx, op, r, firstHalf)
	} else {
		err = e.undo(op.ctx, op, r, wholly)
	}
	if err != nil {
		return r, err
	}
	// The locks are kept meanwhile: who comes next waits for a moment, and finds nothing.
	op.later = func() {
		if promised {
			e.keep(op, r)
		} else if err := e.Store.Remove(r); err != nil {
			klog.FromContext(op.ctx).Error(err, "A record stays until the next pass", "claimUID", op.uid)
		}
		hold.Release()
		e.Observer.Released(r)
	}
	return given, nil
}

// promise notes durably that a claim is being given back, if it has steps of which not all has to be done before kubelet is told so: what
// is left is done by the next process if need be. Who asks again is answered when all is done, as is one who cannot be promised anything.
func (e *Engine) promise(r *record.Record) bool {
	finishes := func(s record.Step) bool { return e.kinds.Finishes(s.Step) }
	return r.Phase != record.Releasing && slices.ContainsFunc(r.Steps, finishes) &&
		e.Store.MarkReleasing(r) == nil
}

// keep does what was promised. Nobody's call waits for it, so what keeps it is told as what the next process finds is.
func (e *Engine) keep(op *operation, r *record.Record) {
	ctx, cancel := e.outlive(op)
	defer cancel()
	tell := time.AfterFunc(e.Budget, func() { e.report(ctx, ReasonRecoveryFailed, r, e.pending(op, errBudget).Error()) })
	err := e.undo(ctx, op, r, secondHalf)
	tell.Stop()
	if err == nil {
		err = e.Store.Remove(r)
	}
	if err != nil && e.base.Err() == nil {
		e.report(ctx, ReasonRecoveryFailed, r, err.Error()+": tried again at the next pass")
	}
}

// release gives back what a claim holds, and forgets it. The record stays where a step could not be undone, so that it is tried again,
// from there.
func (e *Engine) release(op *operation, r *record.Record) error { return e.releaseIn(op.ctx, op, r) }

func (e *Engine) releaseIn(ctx context.Context, op *operation, r *record.Record) error {
	if err := e.undo(ctx, op, r, wholly); err != nil {
		return err
	}
	return e.Store.Remove(r)
}

// half is a part of undoing a step.
type half uint8

const (
	firstHalf  half = 1 << iota // step.Kind's Undo, before the answer
	secondHalf                  // its Finish
	wholly     = firstHalf | secondHalf
)

// undo undoes the steps in reverse, or comes to the end of that. When it returns without an error the claim holds nothing, which is
// certain; its record may still be there.
func (e *Engine) undo(ctx context.Context, op *operation, r *record.Record, what half) error {
	last, err := e.undoSteps(ctx, op, r, what)
	if err != nil {
		return err
	}
	// Before the record is released: nobody would come back to it.
	e.Health.Clear(r)
	if err := e.Store.ForgetDamaged(r.UID); err != nil {
		return err
	}
	if err := e.Store.Release(r, last); err != nil {
		e.unnoted.Store(r.UID, true)
		return err
	}
	e.unnoted.Delete(r.UID)
	e.setRecovering(r, false)
	return nil
}

// undoSteps returns the last change, which is made and not yet noted. What cannot be written down before is undone all the same: undoing
// it twice does no harm, and it may be the disk that is full.
func (e *Engine) undoSteps(ctx context.Context, op *operation, r *record.Record, what half) (last record.Change, err error) {
	if r.Phase != record.Releasing {
		last.Phase = record.Releasing
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		s := r.Steps[i]
		if s.State == step.Undone {
			continue
		}
		if last != (record.Change{}) && e.Store.Advance(r, last) != nil {
			e.unnoted.Store(r.UID, true)
		}
		last = record.Change{}
		op.is("undoes step " + s.String())
		op.undoes(r)
		err := e.undoStep(ctx, s.Step, what)
		op.undoes(nil)
		if err != nil {
			if ctx.Err() == nil {
				e.Health.Quarantine(r, err)
			}
			return last, err
		}
		if what&secondHalf != 0 || !e.kinds.Finishes(s.Step) {
			last = record.Change{Step: i, State: step.Undone}
		}
	}
	return last, nil
}

func (e *Engine) undoStep(ctx context.Context, s step.Step, what half) error {
	if what&firstHalf != 0 {
		if err := e.kinds.Undo(ctx, s); err != nil {
			return err
		}
	}
	if what&secondHalf != 0 {
		return e.kinds.Finish(ctx, s)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// rollBack undoes a Prepare that failed. What is cut off by the end of the process is left to the next one.
func (e *Engine) rollBack(op *operation, r *record.Record) error {
	if e.base.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(op.ctx))
	defer cancel(nil)
	defer context.AfterFunc(e.base, func() { cancel(context.Cause(e.base)) })()
	return e.releaseIn(ctx, op, r)
}

// Unprepare gives back what a claim holds and returns what that was. A claim without a record holds nothing: nil, nil.
func (e *Engine) Unprepare(ctx context.Context, uid string, arrived record.Moment) (*record.Record, error) {
	// What arrived between two of these calls must not come true after the second, so a later call is not done with an earlier one.
	accept := func(op *operation) bool { return op.arrived >= arrived.Since }
	return e.do(ctx, uid, unpreparing, accept, func(op *operation) (*record.Record, error) {
		op.arrived = arrived.Since
		return e.unprepare(op, arrived)
	})
}

func (e *Engine) unprepare(op *operation, arrived record.Moment) (*record.Record, error) {
	hold, r, err := e.lock(op.ctx, op, op.uid, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if op.later == nil {
			hold.Release()
		}
	}()
	if err := hold.Bury(op.ctx, arrived); err != nil {
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
	if err := e.undo(op.ctx, op, r); err != nil {
		return r, err
	}
	// The locks are kept meanwhile: who comes next waits for a moment, and finds nothing.
	op.later = func() {
		defer hold.Release()
		if err := e.Store.Remove(r); err != nil {
			klog.FromContext(op.ctx).Error(err, "A record stays until the next pass", "claimUID", op.uid)
		}
	}
	return r, nil
}

// release gives back what a claim holds, and forgets it. The record stays where a step could not be undone, so that it is tried again,
// from there.
func (e *Engine) release(op *operation, r *record.Record) error { return e.releaseIn(op.ctx, op, r) }

func (e *Engine) releaseIn(ctx context.Context, op *operation, r *record.Record) error {
	if err := e.undo(ctx, op, r); err != nil {
		return err
	}
	return e.Store.Remove(r)
}

// undo undoes the steps in reverse. When it returns without an error the claim holds nothing, which is certain; its record may still be
// there. What cannot be written down before is undone all the same: undoing it twice does no harm, and it may be the disk that is full.
func (e *Engine) undo(ctx context.Context, op *operation, r *record.Record) error {
	var next record.Change // not yet noted
	if r.Phase != record.Releasing {
		next.Phase = record.Releasing
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if r.Steps[i].State == step.Undone {
			continue
		}
		if next != (record.Change{}) && e.Store.Advance(r, next) != nil {
			e.setUnnoted(r.UID, true)
		}
		op.is("undoes step " + r.Steps[i].String())
		op.undoes(r)
		err := e.Kinds.Undo(ctx, r.Steps[i].Step)
		op.undoes(nil)
		if err != nil {
			if ctx.Err() == nil {
				e.quarantine(r, err)
			}
			return err
		}
		next = record.Change{Step: i, State: step.Undone}
	}
	// Before the record is released: nobody would come back to it.
	e.clear(r)
	if err := e.Store.Settle(r.UID); err != nil {
		return err
	}
	if err := e.Store.Release(r, next); err != nil {
		e.setUnnoted(r.UID, true)
		return err
	}
	e.setUnnoted(r.UID, false)
	e.setRecovering(r, false)
	return nil
}

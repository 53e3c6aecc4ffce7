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
	defer hold.Release()
	if err := e.Store.Bury(op.uid, arrived); err != nil {
		// A full disk must not keep pods from ending; and where nothing can be written, no late Prepare gets far.
		klog.FromContext(op.ctx).V(2).Info("Remembered in memory only", "claimUID", op.uid, "reason", err)
		e.mu.Lock()
		e.late[op.uid] = arrived
		e.mu.Unlock()
	}
	if r == nil && e.Store.InDoubt(op.uid) {
		if r, err = e.rebuild(op.ctx, op.uid); err != nil {
			return nil, err
		}
	}
	if r == nil {
		return nil, nil //nolint:nilnil // documented at Unprepare: nothing was held
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	return r, e.release(op, r)
}

// release undoes the steps in reverse and forgets the claim. The record stays where a step could not be undone, so that it is tried
// again, from there.
func (e *Engine) release(op *operation, r *record.Record) error { return e.releaseIn(op.ctx, op, r) }

func (e *Engine) releaseIn(ctx context.Context, op *operation, r *record.Record) error {
	noted := r.Phase == record.Releasing
	if !noted && len(r.Steps) > 0 {
		// What cannot be written down is undone all the same: undoing it twice does no harm, and it may be the disk that is full.
		noted = e.Store.Advance(r, record.Change{Phase: record.Releasing}) == nil
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if r.Steps[i].State == step.Undone {
			continue
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
		if noted {
			noted = e.Store.Advance(r, record.Change{Step: i, State: step.Undone}) == nil
		}
	}
	if e.Clear != nil {
		e.Clear(r) // before the record goes: nobody would come back to it
	}
	if err := e.Store.Remove(r); err != nil {
		return err
	}
	e.setRecovering(r, false)
	return e.Store.Settle(r.UID)
}

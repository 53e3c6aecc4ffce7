// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// rollBack undoes a failed Prepare. If the process stops meanwhile, the next one recovers the claim.
func (e *Engine) rollBack(op *operation, r *record.Record) error {
	if e.operations.stopped() {
		return nil
	}
	ctx, cancel := e.operations.background(op)
	defer cancel()
	return e.release(ctx, op, r)
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
	deferred := early && !op.inDoubt && e.markReleasing(r)
	if deferred {
		_, err = e.undoSteps(op.ctx, op, r, partUndo)
	} else {
		err = e.undo(op.ctx, op, r, allParts)
	}
	if err != nil {
		return r, err
	}
	// The locks are kept meanwhile: the next call for the claim or its devices waits for a moment and finds nothing.
	op.followUp = func() {
		if deferred {
			e.finishRelease(op, r)
		} else if err := e.Store.Remove(r); err != nil {
			klog.FromContext(op.ctx).Error(err, "Cannot remove the record of a released claim until the next pass", "claimUID", op.uid)
		}
		hold.Release()
		e.Observer.Released(r)
	}
	return released, nil
}

// markReleasing durably records that the claim is being released, if some of its steps need cleanup after the answer to kubelet. The next
// process finishes the release if this one cannot. It returns false if nothing can be deferred; then kubelet is answered when all is done,
// as for a repeated call.
func (e *Engine) markReleasing(r *record.Record) bool {
	finishes := func(s record.Step) bool { return e.kinds.Finishes(s.Step) }
	return r.Phase != record.Releasing && slices.ContainsFunc(r.Steps, finishes) &&
		e.Store.MarkReleasing(r) == nil
}

// finishRelease runs after Unprepare was answered. No caller waits, so failures are reported as recovery incidents.
func (e *Engine) finishRelease(op *operation, r *record.Record) {
	ctx, cancel := e.operations.background(op)
	defer cancel()
	report := time.AfterFunc(e.Budget, func() { e.report(ctx, ReasonRecoveryFailed, r, e.operations.pending(op, errBudget).Error()) })
	err := e.undo(ctx, op, r, partFinish)
	report.Stop()
	if err == nil {
		err = e.Store.Remove(r)
	}
	if err != nil && !e.operations.stopped() {
		e.report(ctx, ReasonRecoveryFailed, r, err.Error()+": tried again at the next pass")
	}
}

// release undoes the steps of a claim and removes its record. If a step fails, the record stays, and the next try continues from that step.
func (e *Engine) release(ctx context.Context, op *operation, r *record.Record) error {
	if err := e.undo(ctx, op, r, allParts); err != nil {
		return err
	}
	return e.Store.Remove(r)
}

// undoParts selects the parts of undoing a step.
type undoParts uint8

const (
	partUndo   undoParts = 1 << iota // step.Kind.Undo, before the answer
	partFinish                       // step.Kind.Finish, after it
	allParts   = partUndo | partFinish
)

// undo undoes the steps in reverse order, or finishes that. When it returns no error, the claim durably holds nothing, though its record
// may still exist.
func (e *Engine) undo(ctx context.Context, op *operation, r *record.Record, parts undoParts) error {
	last, err := e.undoSteps(ctx, op, r, parts)
	if err != nil {
		return err
	}
	// Before the record is released: nothing that the claim's undoing left in doubt outlives its record.
	e.Health.Clear(r)
	more, err := e.records.holdsMore(r.UID, r)
	if err == nil && !more { // else the claim keeps the rest until it is back and the claim is collected
		err = e.Store.ForgetDamaged(r.UID)
	}
	if err != nil {
		return err
	}
	if err := e.Store.Release(r, last); err != nil {
		e.unrecorded.Store(r.UID, true)
		return err
	}
	e.unrecorded.Delete(r.UID)
	e.abandoned.Delete(r.UID)
	e.setRecovering(r, false)
	e.deleted.forget(r.UID)
	return nil
}

// undoSteps undoes the steps in reverse order and returns the last change, which is not recorded yet. It continues when a change cannot be
// recorded: undoing a step twice does no harm, and the disk may be full.
func (e *Engine) undoSteps(ctx context.Context, op *operation, r *record.Record, parts undoParts) (last record.Change, err error) {
	if r.Phase != record.Releasing {
		last.Phase = record.Releasing
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		s := r.Steps[i]
		if s.State == step.Undone {
			continue
		}
		if last != (record.Change{}) && e.Store.Advance(r, last) != nil {
			e.unrecorded.Store(r.UID, true)
		}
		last = record.Change{}
		op.setActivity("undoes step " + s.String())
		op.setUndoing(r)
		err := e.undoStep(ctx, s.Step, parts)
		op.setUndoing(nil)
		if errors.Is(err, step.ErrReplaced) {
			err = e.unlessAbandoned(ctx, r, err)
		}
		if err != nil {
			if ctx.Err() == nil {
				e.Health.Quarantine(r, err)
			}
			return last, err
		}
		if parts&partFinish != 0 || !e.kinds.Finishes(s.Step) {
			last = record.Change{Step: i, State: step.Undone}
		}
	}
	return last, nil
}

// Abandon gives up what the claims that are being released left on devices, as far as Undo finds something else in its place. An
// administrator knows that it will never come back, as from a disk that died. It counts for these claims alone, until this process ends.
func (e *Engine) Abandon(ctx context.Context, devices []string) {
	if len(devices) == 0 {
		return
	}
	uids, err := e.Store.UIDs()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot give up what claims left", "devices", devices)
		return
	}
	for _, uid := range uids {
		r, err := e.Store.Load(uid)
		if err != nil || !interrupted(r) {
			continue
		}
		if slices.ContainsFunc(r.Devices, func(d record.Device) bool { return !d.AdminAccess && slices.Contains(devices, d.Name) }) {
			e.abandoned.Store(uid, true)
		}
	}
}

// unlessAbandoned returns nil if an administrator gave up what Undo did not find. Otherwise it adds to the error how to do that.
func (e *Engine) unlessAbandoned(ctx context.Context, r *record.Record, err error) error {
	if _, gone := e.abandoned.Load(r.UID); gone {
		e.report(ctx, ReasonAbandoned, r, "what the claim left is given up, as an administrator said: "+err.Error())
		return nil
	}
	var names []string
	for i := range r.Devices {
		if !r.Devices[i].AdminAccess {
			names = append(names, r.Devices[i].Name)
		}
	}
	return fmt.Errorf("%w; or, if that is lost for good, annotate the AcceleratorNode %s with %s=%s",
		err, e.Node, v1alpha1.RecoverAnnotation, strings.Join(names, ","))
}

func (e *Engine) undoStep(ctx context.Context, s step.Step, parts undoParts) error {
	if parts&partUndo != 0 {
		if err := e.kinds.Undo(ctx, s); err != nil {
			return err
		}
	}
	if parts&partFinish != 0 {
		return e.kinds.Finish(ctx, s)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// releases undo the steps of claims and remove their records. They know the claims whose release has not ended.
type releases struct {
	*Config
	kinds      step.Kinds
	operations *operations
	records    *records
	deleted    *deletedClaims

	mu sync.Mutex
	// recovering are the devices of interrupted claims, by the claims' UIDs. They are free only when all claims that share them are undone.
	recovering map[string][]record.Device
	// unrecorded are the claims with undone steps that could not be written to their records.
	unrecorded sync.Map
	// abandoned are, by claim, the devices on which an administrator gave up what it left, see abandon.
	abandoned map[string][]string
}

// withheld returns the devices of interrupted claims, see Engine.Recovering.
func (u *releases) withheld() map[[2]string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	held := map[[2]string]string{}
	for uid, devices := range u.recovering {
		for i := range devices {
			d := &devices[i]
			key := [2]string{d.Pool, d.Name}
			if before, ok := held[key]; !d.AdminAccess && (!ok || uid < before) {
				held[key] = uid
			}
		}
	}
	return held
}

func (u *releases) setRecovering(r *record.Record, on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if on {
		u.recovering[r.UID] = r.Devices
	} else {
		delete(u.recovering, r.UID)
	}
}

// forgetRecovered removes devices of claims that another process recovered, and reports whether there were any.
func (u *releases) forgetRecovered(unfinished map[string]bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := len(u.recovering)
	maps.DeleteFunc(u.recovering, func(uid string, _ []record.Device) bool { return !unfinished[uid] })
	return len(u.recovering) < before
}

// isUnrecorded reports whether steps of a claim were undone and its record does not say so.
func (u *releases) isUnrecorded(uid string) bool {
	_, unrecorded := u.unrecorded.Load(uid)
	return unrecorded
}

func (u *releases) setUnrecorded(uid string, on bool) {
	if on {
		u.unrecorded.Store(uid, true)
	} else {
		u.unrecorded.Delete(uid)
	}
}

// rollBack undoes a failed Prepare. If the process stops meanwhile, the next one recovers the claim.
func (u *releases) rollBack(op *operation, r *record.Record) error {
	if u.operations.stopped() {
		return nil
	}
	ctx, cancel := u.operations.background(op)
	defer cancel()
	return u.release(ctx, op, r)
}

// markReleasing durably records that the claim is being released, if some of its steps need cleanup after the answer to kubelet. The next
// process finishes the release if this one cannot. It returns false if nothing can be deferred; then kubelet is answered when all is done,
// as for a repeated call.
func (u *releases) markReleasing(r *record.Record) bool {
	finishes := func(s record.Step) bool { return u.kinds.Finishes(s.Step) }
	return r.Phase != record.Releasing && slices.ContainsFunc(r.Steps, finishes) &&
		u.Store.MarkReleasing(r) == nil
}

// finish runs after Unprepare was answered. No caller waits, so failures are reported as recovery incidents.
func (u *releases) finish(op *operation, r *record.Record) {
	ctx, cancel := u.operations.background(op)
	defer cancel()
	report := time.AfterFunc(u.Budget, func() { u.report(ctx, ReasonRecoveryFailed, r, u.operations.pending(op, errBudget).Error()) })
	err := u.undo(ctx, op, r, partFinish)
	report.Stop()
	if err == nil {
		err = u.Store.Remove(r)
	}
	if err != nil && !u.operations.stopped() {
		u.report(ctx, ReasonRecoveryFailed, r, err.Error()+": tried again at the next pass")
	}
}

// release undoes the steps of a claim and removes its record. If a step fails, the record stays, and the next try continues from that step.
func (u *releases) release(ctx context.Context, op *operation, r *record.Record) error {
	if err := u.undo(ctx, op, r, allParts); err != nil {
		return err
	}
	return u.Store.Remove(r)
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
func (u *releases) undo(ctx context.Context, op *operation, r *record.Record, parts undoParts) error {
	last, err := u.undoSteps(ctx, op, r, parts)
	if err != nil {
		return err
	}
	// Before the record is released: nothing that the claim's undoing left in doubt outlives its record.
	u.Health.Clear(r)
	more, err := u.records.holdsMore(r.UID, r)
	if err == nil && !more { // else the claim keeps the rest until it is back and the claim is collected
		err = u.Store.ForgetDamaged(r.UID)
	}
	if err != nil {
		return err
	}
	if err := u.Store.Release(r, last); err != nil {
		u.setUnrecorded(r.UID, true)
		return err
	}
	u.setUnrecorded(r.UID, false)
	u.setAbandoned(r.UID, nil)
	u.setRecovering(r, false)
	u.deleted.forget(r.UID)
	return nil
}

// undoSteps undoes the steps in reverse order and returns the last change, which is not recorded yet. It continues when a change cannot be
// recorded: undoing a step twice does no harm, and the disk may be full.
func (u *releases) undoSteps(ctx context.Context, op *operation, r *record.Record, parts undoParts) (last record.Change, err error) {
	if r.Phase != record.Releasing {
		last.Phase = record.Releasing
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		s := r.Steps[i]
		if s.State == step.Undone {
			continue
		}
		if last != (record.Change{}) && u.Store.Advance(r, last) != nil {
			u.setUnrecorded(r.UID, true)
		}
		last = record.Change{}
		op.setActivity("undoes step " + s.String())
		op.setUndoing(r)
		err := u.undoStep(ctx, s.Step, parts)
		op.setUndoing(nil)
		if errors.Is(err, step.ErrReplaced) {
			err = u.unlessAbandoned(ctx, r, s.Step, err)
		}
		if err != nil {
			if ctx.Err() == nil {
				u.Health.Quarantine(r, err)
			}
			return last, err
		}
		if parts&partFinish != 0 || !u.kinds.Finishes(s.Step) {
			last = record.Change{Step: i, State: step.Undone}
		}
	}
	return last, nil
}

// unlessAbandoned returns nil if an administrator gave up what Undo of a step did not find. Otherwise it adds to the error how to do that.
func (u *releases) unlessAbandoned(ctx context.Context, r *record.Record, s step.Step, err error) error {
	names := devicesOf(r, s)
	if u.isAbandoned(r.UID, names) {
		u.report(ctx, ReasonAbandoned, r, "what the claim left is given up, as an administrator said: "+err.Error())
		return nil
	}
	return fmt.Errorf("%w; or, if that is lost for good, annotate the AcceleratorNode %s with %s=%s",
		err, u.Node, v1alpha1.RecoverAnnotation, strings.Join(names, ","))
}

// devicesOf returns the names of the held devices that a step is about, or of all that the claim holds if the record does not say.
func devicesOf(r *record.Record, s step.Step) []string {
	var all, own []string
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AdminAccess {
			continue
		}
		all = append(all, d.Name)
		if d.Name == s.Target || slices.ContainsFunc(d.Edits.Mounts, func(m container.Mount) bool { return m.HostPath == s.Target }) {
			own = append(own, d.Name)
		}
	}
	if len(own) == 0 {
		return all
	}
	return own
}

func (u *releases) isAbandoned(uid string, devices []string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.abandoned[uid], func(name string) bool { return slices.Contains(devices, name) })
}

// setAbandoned adds devices to those on which an administrator gave up what a claim left. Without any, none is left.
func (u *releases) setAbandoned(uid string, devices []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(devices) == 0 {
		delete(u.abandoned, uid)
		return
	}
	for _, name := range devices {
		if !slices.Contains(u.abandoned[uid], name) {
			u.abandoned[uid] = append(u.abandoned[uid], name)
		}
	}
}

func (u *releases) undoStep(ctx context.Context, s step.Step, parts undoParts) error {
	if parts&partUndo != 0 {
		if err := u.kinds.Undo(ctx, s); err != nil {
			return err
		}
	}
	if parts&partFinish != 0 {
		return u.kinds.Finish(ctx, s)
	}
	return nil
}

// abandon gives up what the claims that are being released left on devices, see Engine.Abandon.
func (u *releases) abandon(ctx context.Context, devices []string) {
	if len(devices) == 0 {
		return
	}
	uids, err := u.Store.UIDs()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot give up what claims left", "devices", devices)
		return
	}
	for _, uid := range uids {
		r, err := u.Store.Load(uid)
		if err != nil || !interrupted(r) {
			continue
		}
		var own []string
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess && slices.Contains(devices, d.Name) {
				own = append(own, d.Name)
			}
		}
		if len(own) > 0 {
			u.setAbandoned(uid, own)
		}
	}
}

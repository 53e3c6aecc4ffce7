// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/record"
)

// Index reads every record, makes the links from devices to claims anew, and finds the claims that were left half prepared or half
// given back. It applies and undoes nothing, so it is quick, and comes before the first call is served. Records that cannot be read
// hurt their own claims only.
func (e *Engine) Index(ctx context.Context) error {
	uids, err := e.Store.UIDs()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		e.index(ctx, uid)
	}
	return errors.Join(e.Store.SweepOwners(), e.Store.SweepTemporary())
}

func (e *Engine) index(ctx context.Context, uid string) {
	hold, err := e.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return // another process works on it
	}
	defer hold.Release()
	r, err := e.load(ctx, uid)
	switch {
	case errors.Is(err, record.ErrForeign):
		e.report(ctx, ReasonRecordForeign, &record.Record{UID: uid}, err.Error())
		return
	case err != nil:
		e.report(ctx, ReasonRecoveryFailed, &record.Record{UID: uid}, err.Error())
		return
	case r == nil:
		return
	}
	if r.Released() { // its process ended right after that
		e.Health.Clear(r)
		if err = e.Store.Remove(r); err == nil {
			return
		}
		e.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if err := e.Store.Acquire(r); err != nil {
		e.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if halfway(r) {
		e.setRecovering(r, true)
	}
}

// halfway says whether a record was left by a process that ended in the middle: nobody was told that the claim is prepared.
func halfway(r *record.Record) bool { return r.Phase == record.Intended || r.Phase == record.Releasing }

// Run brings the node in order, at once and then at every interval, until ctx ends. changed is called when devices became free that
// were held back.
func (e *Engine) Run(ctx context.Context, interval time.Duration, changed func()) {
	const look = 5 * time.Second
	lookTicker, passTicker := time.NewTicker(look), time.NewTicker(interval)
	defer lookTicker.Stop()
	defer passTicker.Stop()
	expected := e.pass(ctx, changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-passTicker.C:
			e.collect(ctx)
			expected = e.pass(ctx, changed)
		case <-lookTicker.C:
			// A directory that was wiped under a live kubelet is found soon: restarted containers need what was in it.
			if e.missing(expected) {
				expected = e.pass(ctx, changed)
			}
		}
	}
}

// pass walks every record once: what was left halfway is undone, what is prepared since this boot has its specs restored. What was
// prepared in an earlier boot waits until kubelet asks. It returns the files that must be in the CDI directory from now on.
func (e *Engine) pass(ctx context.Context, changed func()) map[string]bool {
	expected, unfinished := map[string]bool{}, map[string]bool{}
	e.adopt(ctx)
	uids, err := e.Store.UIDs()
	there, err2 := e.Specs.Files()
	if err := errors.Join(err, err2); err != nil {
		klog.FromContext(ctx).Error(err, "Claims are not looked after now")
		return expected
	}
	for _, uid := range uids {
		r, err := e.Store.Load(uid)
		if err != nil || ctx.Err() != nil {
			unfinished[uid] = true
			continue // damaged ones are set aside where they are asked for
		}
		switch {
		case halfway(r):
			unfinished[uid] = true
			e.recover(ctx, r, changed)
		case r.Phase == record.Prepared && r.BootID == e.BootID:
			e.look(ctx, r, there, expected)
		}
	}
	if e.recovered(unfinished) && changed != nil {
		changed()
	}
	if err := e.SweepSpecs(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Leftovers stay until the next pass")
	}
	return expected
}

// adopt gives orphans a record as of a claim that is being given back, so that they are put right as any other.
func (e *Engine) adopt(ctx context.Context) {
	for _, f := range e.Features {
		adopter, ok := f.(Adopter)
		if !ok {
			continue
		}
		for _, o := range adopter.Orphans() {
			if err := e.adoptOne(ctx, o); err != nil {
				e.report(ctx, ReasonRecoveryFailed, &record.Record{UID: o.UID}, err.Error()+": tried again at the next pass")
			}
		}
	}
}

func (e *Engine) adoptOne(ctx context.Context, o Orphan) error {
	hold, err := e.Store.TryLockClaim(o.UID)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	pool := e.poolOf(o.Device)
	if holders, err := e.Store.Holders(pool, o.Device.Name); err != nil || len(holders) > 0 {
		return err
	}
	if r, err := e.load(ctx, o.UID); err != nil || r != nil {
		return err
	}
	r := &record.Record{
		UID: o.UID, BootID: e.BootID, Phase: record.Releasing, Devices: []record.Device{{Pool: pool, Name: o.Device.Name}},
	}
	if err := e.addLeftovers(ctx, r, o.Device); err != nil {
		return err
	}
	return errors.Join(e.Store.Create(r), e.Store.Acquire(r))
}

// recover undoes what was left halfway, in the background: one stuck device holds up nothing else.
func (e *Engine) recover(ctx context.Context, seen *record.Record, changed func()) {
	e.mu.Lock()
	_, busy := e.operations[seen.UID]
	e.mu.Unlock()
	if busy {
		return
	}
	e.wg.Go(func() {
		accept := func(*operation) bool { return true }
		r, err := e.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, e.undoHalfway)
		for _, pending := errors.AsType[*PendingError](err); pending; _, pending = errors.AsType[*PendingError](err) {
			e.report(ctx, ReasonRecoveryFailed, seen, err.Error())
			r, err = e.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, e.undoHalfway)
		}
		switch {
		case e.base.Err() != nil:
			return
		case err != nil:
			e.report(ctx, ReasonRecoveryFailed, seen, err.Error()+": tried again at the next pass")
		case r != nil:
			e.report(ctx, ReasonRolledBack, r, "an interrupted Prepare or Unprepare was undone; its devices are free")
		}
		if changed != nil {
			changed()
		}
	})
}

// recovered forgets the devices of claims that another process put in order. It says whether there were any.
func (e *Engine) recovered(unfinished map[string]bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.recovering)
	maps.DeleteFunc(e.recovering, func(_ [2]string, uid string) bool { return !unfinished[uid] })
	return len(e.recovering) < before
}

func (e *Engine) undoHalfway(op *operation) (*record.Record, error) {
	const patience = time.Second // somebody may have a short look at it
	ctx, cancel := context.WithTimeout(op.ctx, patience)
	defer cancel()
	hold, err := e.Store.LockClaim(ctx, op.uid)
	if errors.Is(err, record.ErrBusy) {
		return nil, nil //nolint:nilnil // another process works on it
	}
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	r, err := e.load(op.ctx, op.uid)
	if err != nil || r == nil || !halfway(r) {
		return nil, err
	}
	if err := hold.Devices(op.ctx, namesOf(r.Devices)); err != nil {
		return nil, err
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	if r.Released() {
		return nil, e.release(op, r) // nothing is undone, so there is nothing to tell
	}
	e.setRecovering(r, true)
	return r, e.release(op, r)
}

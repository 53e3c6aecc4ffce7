// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Index reads every record, makes the links from devices to claims again, and finds interrupted claims. It applies and undoes nothing, so
// it is quick and runs before the first call is served. An unreadable record affects only its own claim.
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
	r, err := e.records.load(ctx, uid)
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
	if r.Released() { // its process ended between release and removal
		e.Health.Clear(r)
		if err = e.Store.Remove(r); err == nil {
			return
		}
		e.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if err := e.Store.Acquire(r); err != nil {
		e.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if interrupted(r) {
		e.releases.setRecovering(r, true)
	}
}

// Run recovers and checks all claims now and at every interval until ctx ends. It calls changed when withheld devices become free.
func (e *Engine) Run(ctx context.Context, interval time.Duration, changed func()) {
	const fileInterval = 5 * time.Second
	fileTicker, passTicker := time.NewTicker(fileInterval), time.NewTicker(interval)
	defer fileTicker.Stop()
	defer passTicker.Stop()
	expected := e.pass(ctx, changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-passTicker.C:
			e.collect(ctx)
			expected = e.pass(ctx, changed)
		case <-fileTicker.C:
			// A wiped CDI directory is noticed soon: containers that restart need its files.
			if e.specs.anyMissing(expected) {
				expected = e.pass(ctx, changed)
			}
		}
	}
}

// passPatience is how long a pass waits, for all claims together, for what it has to do for them.
const passPatience = time.Second

// pass walks every record once. It undoes interrupted claims in the background and restores the specs of claims that were prepared in this
// boot. Claims of an earlier boot wait until kubelet asks. It returns the files that must stay in the CDI directory.
func (e *Engine) pass(ctx context.Context, changed func()) map[string]bool {
	expected, unfinished := map[string]bool{}, map[string]bool{}
	e.adopt(ctx)
	uids, err := e.Store.UIDs()
	there, err2 := e.Specs.Files()
	if err := errors.Join(err, err2); err != nil {
		klog.FromContext(ctx).Error(err, "Claims cannot be checked in this pass")
		return expected
	}
	waiting, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	for _, uid := range uids {
		r, err := e.Store.Load(uid)
		if err != nil || ctx.Err() != nil {
			unfinished[uid] = true
			continue // a damaged record is set aside when kubelet asks for the claim
		}
		switch {
		case interrupted(r):
			unfinished[uid] = true
			e.recover(ctx, r, changed)
		case r.Phase == record.Prepared && r.BootID == e.BootID:
			e.specs.checkPrepared(ctx, waiting, r, there, expected)
		}
	}
	if e.releases.forgetRecovered(unfinished) && changed != nil {
		changed()
	}
	if err := e.specs.sweep(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Leftovers stay until the next pass")
	}
	return expected
}

// adopt writes a record for each orphan, as for a claim that is being released, so that the pass repairs it like any other.
func (e *Engine) adopt(ctx context.Context) {
	for _, f := range e.Features {
		adopter, ok := f.(Adopter)
		if !ok {
			continue
		}
		for _, o := range adopter.Orphans(ctx) {
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
	pool := device.PoolName(e.Node, o.Device.Kind)
	// A Prepare that is about to take the device has it locked. The pass does not wait for that.
	once, cancel := context.WithCancel(ctx)
	cancel()
	if err := hold.Devices(once, []string{pool + "/" + o.Device.Name}); err != nil {
		if errors.Is(err, record.ErrBusy) {
			return nil // the next pass finds the orphan again, if it is one
		}
		return err
	}
	if holders, err := e.Store.Holders(pool, o.Device.Name); err != nil || len(holders) > 0 {
		return err
	}
	if r, err := e.records.load(ctx, o.UID); err != nil || r != nil {
		return err
	}
	r := &record.Record{
		UID: o.UID, BootID: e.BootID, Phase: record.Releasing, Devices: []record.Device{{Pool: pool, Name: o.Device.Name}},
	}
	steps, err := e.Features.leftovers(ctx, r.UID, o.Device)
	if err != nil {
		return err
	}
	addMissing(r, steps)
	return errors.Join(e.Store.Create(r), e.Store.Acquire(r))
}

// recover undoes an interrupted claim in the background, so that one stuck device does not delay the others.
func (e *Engine) recover(ctx context.Context, seen *record.Record, changed func()) {
	if e.operations.isBusy(seen.UID) {
		return
	}
	e.operations.wg.Go(func() {
		accept := func(*operation) bool { return true }
		r, err := e.operations.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, e.undoInterrupted)
		for _, pending := errors.AsType[*PendingError](err); pending; _, pending = errors.AsType[*PendingError](err) {
			e.report(ctx, ReasonRecoveryFailed, seen, err.Error())
			r, err = e.operations.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, e.undoInterrupted)
		}
		switch {
		case e.operations.stopped():
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

func (e *Engine) undoInterrupted(op *operation) (*record.Record, error) {
	const patience = time.Second // other work may hold the lock for a moment
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
	r, err := e.records.load(op.ctx, op.uid)
	if err != nil || r == nil || !interrupted(r) {
		return nil, err
	}
	if err := hold.Devices(op.ctx, heldNames(r.Devices)); err != nil {
		return nil, err
	}
	if err := op.detach(); err != nil {
		return nil, err
	}
	if r.Released() {
		return nil, e.releases.release(op.ctx, op, r) // nothing is left to undo, so there is no incident
	}
	e.releases.setRecovering(r, true)
	return r, e.releases.release(op.ctx, op, r)
}

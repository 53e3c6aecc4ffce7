// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// collection finds the claims that need work without a call of kubelet's: interrupted ones, prepared ones that lost something, orphans, and
// claims that are gone.
type collection struct {
	*Config
	operations *operations
	records    *records
	specs      *cdiSpecs
	releases   *releases
	deleted    *deletedClaims

	// missed counts for each claim how many passes in a row found it gone, see lost. Only the goroutine of Engine.Run uses it.
	missed map[string]int
}

// indexAll reads every record, see Engine.Index.
func (c *collection) indexAll(ctx context.Context) error {
	uids, err := c.Store.UIDs()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		c.index(ctx, uid)
	}
	return errors.Join(c.Store.SweepOwners(), c.Store.SweepTemporary())
}

func (c *collection) index(ctx context.Context, uid string) {
	hold, err := c.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return // another process works on it
	}
	defer hold.Release()
	r, err := c.records.load(ctx, uid, &record.Reading{})
	switch {
	case errors.Is(err, record.ErrForeign):
		c.report(ctx, ReasonRecordForeign, &record.Record{UID: uid}, err.Error())
		return
	case err != nil:
		c.report(ctx, ReasonRecoveryFailed, &record.Record{UID: uid}, err.Error())
		return
	case r == nil:
		return
	}
	if r.Released() { // its process ended between release and removal
		c.Health.Clear(r)
		if err = c.Store.Remove(r); err == nil {
			return
		}
		c.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if err := c.Store.Acquire(r); err != nil {
		c.report(ctx, ReasonRecoveryFailed, r, err.Error())
	}
	if interrupted(r) {
		c.releases.setRecovering(r, true)
	}
}

// passPatience is how long a pass waits, for all claims together, for what it has to do for them.
const passPatience = time.Second

// pass walks every record once. It undoes interrupted claims in the background and restores the specs of claims that were prepared in this
// boot. Claims of an earlier boot wait until kubelet asks. It returns the files that must stay in the CDI directory.
func (c *collection) pass(ctx context.Context, changed func()) map[string]bool {
	expected, unfinished := map[string]bool{}, map[string]bool{}
	waiting, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	c.adopt(ctx, waiting)
	c.undoRemains(ctx, waiting)
	uids, err := c.Store.UIDs()
	there, err2 := c.Specs.Files()
	if err := errors.Join(err, err2); err != nil {
		klog.FromContext(ctx).Error(err, "Claims cannot be checked in this pass")
		return expected
	}
	for _, uid := range uids {
		r, err := c.Store.Load(uid)
		if err != nil || ctx.Err() != nil {
			unfinished[uid] = true
			continue // a damaged record is set aside when kubelet asks for the claim
		}
		switch {
		case interrupted(r):
			unfinished[uid] = true
			c.recover(ctx, r, changed)
		case r.Phase == record.Prepared && r.BootID == c.BootID:
			c.specs.checkPrepared(ctx, waiting, r, there, expected)
		}
	}
	if c.releases.forgetRecovered(unfinished) && changed != nil {
		changed()
	}
	if err := c.specs.sweep(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Leftovers stay until the next pass")
	}
	return expected
}

// adopt writes a record for each orphan, as for a claim that is being released, so that the pass repairs it like any other. What is to be
// undone may be asked of the API server and of registries, so it is waited for as for any other work of a pass.
func (c *collection) adopt(ctx, waiting context.Context) {
	for _, f := range c.Features {
		adopter, ok := f.(Adopter)
		if !ok {
			continue
		}
		for _, o := range adopter.Orphans(ctx) {
			c.operations.attend(waiting, o.UID, func() {
				if err := c.adoptOne(ctx, o); err != nil {
					c.report(ctx, ReasonRecoveryFailed, &record.Record{UID: o.UID}, err.Error()+": tried again at the next pass")
				}
			})
		}
	}
}

func (c *collection) adoptOne(ctx context.Context, o Orphan) error {
	hold, err := c.Store.TryLockClaim(o.UID)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	pool := device.PoolName(c.Node, o.Device.Kind)
	// A Prepare that is about to take the device has it locked. The pass does not wait for that.
	once, cancel := context.WithCancel(ctx)
	cancel()
	if err := hold.Devices(once, []string{pool + "/" + o.Device.Name}); err != nil {
		if errors.Is(err, record.ErrBusy) {
			return nil // the next pass finds the orphan again, if it is one
		}
		return err
	}
	if holders, err := c.Store.Holders(pool, o.Device.Name); err != nil || len(holders) > 0 {
		return err
	}
	if r, err := c.records.load(ctx, o.UID, &record.Reading{}); err != nil || r != nil {
		return err
	}
	r := &record.Record{
		UID: o.UID, BootID: c.BootID, Phase: record.Releasing, Devices: []record.Device{heldAgain(c.Node, &o.Device)},
	}
	steps, err := c.Features.leftovers(ctx, r.UID, o.Device)
	if err != nil {
		return err
	}
	addMissing(r, steps)
	return errors.Join(c.Store.Create(r), c.Store.Acquire(r))
}

// undoRemains undoes what is on the node of claims that have no record. When a damaged record was made again the new one may have had fewer
// steps, since objects had changed.
func (c *collection) undoRemains(ctx, waiting context.Context) {
	for _, f := range c.Features {
		owner, ok := f.(Owner)
		if !ok {
			continue
		}
		uids, err := owner.Claims()
		if err != nil {
			klog.FromContext(ctx).Error(err, "What claims left is not found in this pass", "feature", f.Name())
		}
		for _, uid := range uids {
			if c.records.has(uid) || c.operations.isBusy(uid) {
				continue
			}
			c.operations.attend(waiting, uid, func() {
				if err := c.undoRemainsOf(ctx, uid); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "What a claim left without a record stays until the next pass", "claimUID", uid)
				}
			})
		}
	}
}

func (c *collection) undoRemainsOf(ctx context.Context, uid string) error {
	hold, err := c.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	if c.records.has(uid) {
		return nil
	}
	steps, err := c.Features.leftovers(ctx, uid, device.Device{})
	if err != nil {
		return err
	}
	for _, s := range slices.Backward(steps) {
		if err := c.releases.undoStep(ctx, s, allParts); err != nil {
			return err
		}
	}
	if len(steps) > 0 {
		klog.FromContext(ctx).Info("Undid what a claim without a record had", "claimUID", uid, "steps", len(steps))
	}
	return nil
}

// recover undoes an interrupted claim in the background, so that one stuck device does not delay the others.
func (c *collection) recover(ctx context.Context, seen *record.Record, changed func()) {
	if c.operations.isBusy(seen.UID) {
		return
	}
	c.operations.spawn(func() {
		accept := func(*operation) bool { return true }
		r, err := c.operations.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, c.undoInterrupted)
		for _, pending := errors.AsType[*PendingError](err); pending; _, pending = errors.AsType[*PendingError](err) {
			c.report(ctx, ReasonRecoveryFailed, seen, err.Error())
			r, err = c.operations.do(context.WithoutCancel(ctx), seen.UID, recovering, accept, c.undoInterrupted)
		}
		switch {
		case c.operations.stopped():
			return
		case Overtaken(err): // kubelet gives the claim back
		case err != nil:
			c.report(ctx, ReasonRecoveryFailed, seen, err.Error()+": tried again at the next pass")
		case r != nil:
			c.report(ctx, ReasonRolledBack, r, "an interrupted Prepare or Unprepare was undone; its devices are free")
		}
		if changed != nil {
			changed()
		}
	})
}

func (c *collection) undoInterrupted(op *operation) (*record.Record, error) {
	const patience = time.Second // other work may hold the lock for a moment
	ctx, cancel := context.WithTimeout(op.ctx, patience)
	defer cancel()
	hold, err := c.Store.LockClaim(ctx, op.uid)
	if errors.Is(err, record.ErrBusy) {
		return nil, nil //nolint:nilnil // another process works on it
	}
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	r, err := c.records.load(op.ctx, op.uid, &op.reading)
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
		return nil, c.releases.release(op.ctx, op, r) // nothing is left to undo, so there is no incident
	}
	c.releases.setRecovering(r, true)
	return r, c.releases.release(op.ctx, op, r)
}

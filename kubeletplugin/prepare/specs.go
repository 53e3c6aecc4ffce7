// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
)

// anyMissing reports whether an expected CDI file is gone.
func (e *Engine) anyMissing(expected map[string]bool) bool {
	there, err := e.Specs.Files()
	for file := range expected {
		if err == nil && !there[file] {
			return true
		}
	}
	return false
}

// checkPrepared restores the missing effects and specs of a prepared claim, and adds its CDI files to expected.
func (e *Engine) checkPrepared(ctx, waiting context.Context, r *record.Record, there, expected map[string]bool) {
	if e.moved(r) {
		if err := e.withdraw(ctx, r.UID); err != nil {
			e.report(ctx, ReasonRecoveryFailed, r, err.Error())
		}
		return
	}
	var gone []string
	for _, file := range specFiles(r) {
		if there[file] {
			expected[file] = true
		} else {
			gone = append(gone, file)
		}
	}
	if len(gone) == 0 && len(r.Steps) == 0 {
		return
	}
	whole := false
	ended := e.operations.attend(waiting, r.UID, func() { whole = e.restore(ctx, r) })
	for _, file := range gone {
		if ended && whole { // else it is reported once a pass, not every few seconds
			expected[file] = true
		}
	}
}

// restore restores the effects and specs of a prepared claim, reports what it did, and returns false if that failed.
func (e *Engine) restore(ctx context.Context, r *record.Record) bool {
	restored, err := e.restoreEffects(ctx, r)
	switch {
	case err != nil:
		e.report(ctx, ReasonEffectLost, r, err.Error())
	case restored:
		e.report(ctx, ReasonSpecRestored, r, "its CDI specs were gone and are written again")
	}
	return err == nil
}

// specFiles lists the CDI files that a record needs.
func specFiles(r *record.Record) []string {
	out := editFiles(r)
	for i := range r.Devices {
		if file := cdi.ShownFile(string(r.Devices[i].Kind()), r.Devices[i].Name); !slices.Contains(out, file) {
			out = append(out, file)
		}
	}
	return out
}

// shownSpecs returns the specs that name the devices of a record.
func shownSpecs(r *record.Record) ([]cdi.Spec, error) {
	out := make([]cdi.Spec, 0, len(r.Devices))
	for i := range r.Devices {
		spec, err := cdi.Shown(string(r.Devices[i].Kind()), r.Devices[i].Name)
		if err != nil {
			return nil, err
		}
		out = append(out, spec)
	}
	return out, nil
}

// editFiles lists the CDI files with what a claim's containers get.
func editFiles(r *record.Record) []string {
	var out []string
	for i := range r.Steps {
		if r.Steps[i].Kind == cdi.StepKind {
			out = append(out, r.Steps[i].Target)
		}
	}
	for _, d := range sharedDevices(r) {
		out = append(out, cdi.FileOf(d.name))
	}
	return out
}

// moved reports whether a device of a claim has other device numbers than the claim got, or these are another device's. A container that
// starts now would get the node of another device.
func (e *Engine) moved(r *record.Record) bool {
	machine := e.Machine()
	if machine == nil {
		return false
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, ok := machine.Find(d.Kind(), d.Name)
		if ok && (!sameNumbers(d.Edits, dev.Edits) || r.BootID == e.BootID && d.Place.Moved(dev.Place)) {
			return true
		}
	}
	return false
}

// sameNumbers reports whether the nodes that a claim got are still those of its device. A node that the device has beside them changes
// nothing. A node that several devices have in common may be missing now, since its driver makes it when a program first needs it. Where a
// step makes what a container gets, a device has only the nodes that are known before, and it may have become such a device, or ceased to
// be one, since the claim got it.
func sameNumbers(got, now container.Edits) bool {
	made := len(got.Made)+len(now.Made) > 0
	return !slices.ContainsFunc(got.Nodes, func(a container.Node) bool {
		i := slices.IndexFunc(now.Nodes, func(b container.Node) bool { return a.Path == b.Path })
		if i < 0 {
			return !made && !a.Common()
		}
		return a.Major != now.Nodes[i].Major || a.Minor != now.Nodes[i].Minor
	})
}

// withdraw removes the specs of a claim whose devices moved, so that the restart of a container fails instead. They are restored when the
// numbers return, or written with the new numbers when kubelet asks again.
func (e *Engine) withdraw(ctx context.Context, uid string) error {
	claim, r, err := e.tryLock(uid)
	if err != nil || r == nil {
		return err
	}
	defer claim.Release()
	there, err := e.Specs.Files()
	if err != nil || !e.moved(r) {
		return err
	}
	stale := slices.DeleteFunc(editFiles(r), func(file string) bool { return !there[file] })
	if len(stale) == 0 {
		return nil
	}
	hold, err := e.Store.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	// What a claim needs whose devices did not move stays. A record that cannot be read keeps nothing: a container must not get another
	// device.
	inUse, _ := e.sharedFilesInUse(func(other *record.Record) bool { return !e.moved(other) })
	if stale = slices.DeleteFunc(stale, func(file string) bool { return inUse[file] }); len(stale) == 0 {
		return nil
	}
	if err := e.Specs.Sweep(stale); err != nil {
		return err
	}
	e.report(ctx, ReasonDeviceMoved, r, "a device of it got other device numbers, or these are another device's: its containers cannot be "+
		"restarted; delete the pod")
	return nil
}

// restoreEffects verifies the steps of a prepared claim and restores its specs. It does nothing if the claim is locked, or was released
// since its record was read. It reports whether a spec with edits was missing. Lost files are fetched before the claim is locked: a slow
// registry must not keep its pod from ending.
func (e *Engine) restoreEffects(ctx context.Context, read *record.Record) (restored bool, err error) {
	if err := e.Features.restore(ctx, read); err != nil {
		if !e.HasRecord(read.UID) {
			err = nil
		}
		return false, err
	}
	hold, r, err := e.tryLock(read.UID)
	if err != nil || r == nil {
		return false, err
	}
	defer hold.Release()
	there, err := e.Specs.Files()
	if err != nil {
		return false, err
	}
	if err := e.verifySteps(ctx, r); err != nil {
		return false, err
	}
	// Claims of a version that showed kubelet's devices by other names lack those files, and no container needs them.
	gone := slices.ContainsFunc(editFiles(r), func(file string) bool { return !there[file] })
	return gone, e.restoreSpecs(ctx, r)
}

// tryLock locks a claim and returns its record if the claim is prepared and no other work has locked it. Otherwise it returns no record.
func (e *Engine) tryLock(uid string) (*record.Hold, *record.Record, error) {
	hold, err := e.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return nil, nil, err
	}
	r, err := e.Store.Load(uid)
	if err == nil && r.Phase == record.Prepared {
		return hold, r, nil
	}
	hold.Release()
	if isNotExist(err) {
		err = nil
	}
	return nil, nil, err
}

// SweepSpecs removes the spec files that neither a present device nor a claim needs. It locks and reads nothing unless there is a file that
// looks like a leftover.
func (e *Engine) SweepSpecs(ctx context.Context) error {
	machine := e.Machine()
	if machine == nil {
		return nil
	}
	standing := map[string]bool{}
	for _, d := range machine.All() {
		if spec, err := e.Names.Common(d.Edits); err == nil && len(d.Edits.Made) == 0 {
			standing[spec.File] = true
		}
		standing[cdi.ShownFile(string(d.Kind), d.Name)] = true
	}
	candidates, err := e.Specs.Unwanted(func(file string) bool { return standing[file] })
	var shared []string
	errs := []error{err}
	for _, file := range candidates {
		if uid, ok := cdi.ClaimOf(file); ok {
			errs = append(errs, e.sweepOwn(uid, file))
		} else {
			shared = append(shared, file)
		}
	}
	if len(shared) > 0 {
		errs = append(errs, e.sweepShared(ctx, shared))
	}
	return errors.Join(errs...)
}

// sweepOwn removes a claim's own file if the claim has no record and has not lost one.
func (e *Engine) sweepOwn(uid, file string) error {
	hold, err := e.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	if e.HasRecord(uid) || e.Store.InDoubt(uid) {
		return nil
	}
	return e.Specs.Sweep([]string{file})
}

// sweepShared removes the shared files that no record names. A Prepare writes its record first and then ensures its specs under the same
// lock. So either the sweep sees the record, or the Prepare writes the file again.
func (e *Engine) sweepShared(ctx context.Context, files []string) error {
	hold, err := e.Store.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	inUse, err := e.sharedFilesInUse(func(*record.Record) bool { return true })
	if err != nil {
		return err // such a record may name any file: sweep nothing
	}
	return e.Specs.Sweep(slices.DeleteFunc(files, func(file string) bool { return inUse[file] }))
}

// sharedFilesInUse returns the spec files that records name. A record for which counts is false is passed over. If a record cannot be read,
// or was set aside because of that, the files of the others are returned together with the error.
func (e *Engine) sharedFilesInUse(counts func(*record.Record) bool) (map[string]bool, error) {
	uids, err := e.Store.UIDs()
	if err != nil {
		return nil, err
	}
	inUse := map[string]bool{}
	errs := []error{e.Store.CheckDoubt()}
	for _, uid := range uids {
		r, err := e.Store.Load(uid)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !counts(r) {
			continue
		}
		for _, file := range specFiles(r) {
			inUse[file] = true
		}
	}
	return inUse, errors.Join(errs...)
}

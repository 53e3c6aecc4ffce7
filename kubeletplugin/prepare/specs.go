// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// cdiSpecs are the CDI specs on disk, and the effects that claims have on devices: both are checked, and restored from the records.
type cdiSpecs struct {
	*Config
	kinds      step.Kinds
	operations *operations
	records    *records
}

// ensure writes missing shared specs. Its lock keeps sweep from removing any meanwhile.
func (s *cdiSpecs) ensure(ctx context.Context, shared []cdi.Spec) error {
	if len(shared) == 0 {
		return nil
	}
	hold, err := s.Store.LockSpecs(ctx, false)
	if err != nil {
		return err
	}
	defer hold.Release()
	for _, spec := range shared {
		if err := s.Specs.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}

// verify checks that all that an earlier Prepare did is still there, and restores what it can. shared are the shared specs of the record,
// as a plan that gives the same answer has them.
func (s *cdiSpecs) verify(ctx context.Context, r *record.Record, shared []cdi.Spec) error {
	if err := s.Store.Acquire(r); err != nil {
		return err
	}
	if err := s.verifySteps(ctx, r); err != nil {
		return err
	}
	shown, err := shownSpecs(r)
	if err != nil {
		return err
	}
	return s.ensure(ctx, slices.Concat(shared, shown))
}

// verifySteps checks each effect of an earlier Prepare.
func (s *cdiSpecs) verifySteps(ctx context.Context, r *record.Record) error {
	if err := s.Features.restore(ctx, r); err != nil {
		return err
	}
	for _, done := range r.Steps {
		if err := s.kinds.Verify(ctx, done.Step); err != nil {
			return err
		}
	}
	return nil
}

// restoreShared writes the missing shared specs of a record again.
func (s *cdiSpecs) restoreShared(ctx context.Context, r *record.Record) error {
	missing, err := shownSpecs(r)
	if err != nil {
		return err
	}
	for _, d := range sharedDevices(r) {
		spec, there, err := s.common(*d.edits, d.name)
		if err != nil {
			return err
		}
		if !there {
			missing = append(missing, spec)
		}
	}
	return s.ensure(ctx, missing)
}

// common returns the common spec of edits under the name that a record has for them, or under a new name if recorded is empty. A name
// outlives the version of Fettle and the secret that made it. A file under such a name stays as it is, and there says so.
func (s *cdiSpecs) common(edits container.Edits, recorded string) (spec cdi.Spec, there bool, err error) {
	spec, err = s.Names.Common(edits)
	switch {
	case err != nil || recorded == "" || recorded == spec.Device:
		return spec, false, err
	case s.Specs.Has(recorded):
		return cdi.Spec{Device: recorded}, true, nil
	}
	spec, err = cdi.CommonAs(recorded, edits)
	return spec, false, err
}

// anyMissing reports whether an expected CDI file is gone.
func (s *cdiSpecs) anyMissing(expected map[string]bool) bool {
	there, err := s.Specs.Files()
	for file := range expected {
		if err == nil && !there[file] {
			return true
		}
	}
	return false
}

// checkPrepared restores the missing effects and specs of a prepared claim, and adds its CDI files to expected.
func (s *cdiSpecs) checkPrepared(ctx, waiting context.Context, r *record.Record, there, expected map[string]bool) {
	if s.moved(r) {
		s.operations.attend(waiting, r.UID, func() {
			if err := s.withdraw(ctx, r); err != nil && ctx.Err() == nil {
				s.report(ctx, ReasonRecoveryFailed, r, err.Error())
			}
		})
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
	ended := s.operations.attend(waiting, r.UID, func() { whole = s.restore(ctx, r) })
	for _, file := range gone {
		if ended && whole { // else it is reported once a pass, not every few seconds
			expected[file] = true
		}
	}
}

// restore restores the effects and specs of a prepared claim, reports what it did, and returns false if that failed.
func (s *cdiSpecs) restore(ctx context.Context, r *record.Record) bool {
	restored, err := s.restoreEffects(ctx, r)
	switch {
	case err != nil:
		s.report(ctx, ReasonEffectLost, r, err.Error())
	case restored:
		s.report(ctx, ReasonSpecRestored, r, "its CDI specs were gone and are written again")
	}
	return err == nil
}

// moved reports whether a device of a claim has other device numbers than the claim got, or these are another device's. A container that
// starts now would get the node of another device.
func (s *cdiSpecs) moved(r *record.Record) bool {
	machine := s.Machine()
	if machine == nil {
		return false
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, ok := machine.Find(d.Kind(), d.Name)
		if ok && (!sameNumbers(d.Edits, dev.Edits) || r.BootID == s.BootID && d.Place.Moved(dev.Place)) {
			return true
		}
	}
	return false
}

// scanPatience is how long a scan may take that decides whether a device moved.
const scanPatience = 30 * time.Second

// withdraw removes the specs of a claim whose devices moved, so that the restart of a container fails instead. They are restored when the
// numbers return, or written with the new numbers when kubelet asks again. The plugin of an upgrade may have prepared a claim by what it
// scanned later than this one, so the machine is scanned again, and what was prepared since then is left to the next pass. The scan may
// take long, so nothing is locked meanwhile.
func (s *cdiSpecs) withdraw(ctx context.Context, read *record.Record) error {
	if stale, err := s.presentFiles(read); err != nil || len(stale) == 0 {
		return err
	}
	before, err := s.stamps()
	if err != nil {
		return err
	}
	scanning, cancel := context.WithTimeout(ctx, scanPatience)
	defer cancel()
	if err := s.ScanAgain(scanning); err != nil {
		return err
	}
	moved := func(r *record.Record) bool {
		now, err := s.Store.Stamp(r.UID)
		return err == nil && now == before[r.UID] && s.moved(r)
	}
	claim, r, err := s.records.tryLock(read.UID)
	if err != nil || r == nil {
		return err
	}
	defer claim.Release()
	hold, err := s.Store.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	stale, err := s.presentFiles(r)
	if err != nil || !moved(r) {
		return err
	}
	// What a claim needs whose devices did not move stays. A record that cannot be read keeps nothing: a container must not get another
	// device.
	inUse, _ := s.sharedFilesInUse(func(other *record.Record) bool { return !moved(other) })
	if stale = slices.DeleteFunc(stale, func(file string) bool { return inUse[file] }); len(stale) == 0 {
		return nil
	}
	if err := s.Specs.Sweep(stale); err != nil {
		return err
	}
	s.report(ctx, ReasonDeviceMoved, r, "a device of it got other device numbers, or these are another device's: its containers cannot be "+
		"restarted; delete the pod")
	return nil
}

// presentFiles lists the CDI files with what a claim's containers get, as far as they are there.
func (s *cdiSpecs) presentFiles(r *record.Record) ([]string, error) {
	there, err := s.Specs.Files()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(editFiles(r), func(file string) bool { return !there[file] }), nil
}

// stamps returns the stamps of all records.
func (s *cdiSpecs) stamps() (map[string]record.Stamp, error) {
	uids, err := s.Store.UIDs()
	if err != nil {
		return nil, err
	}
	stamps := map[string]record.Stamp{}
	for _, uid := range uids {
		if stamp, err := s.Store.Stamp(uid); err == nil { // else it was just removed
			stamps[uid] = stamp
		}
	}
	return stamps, nil
}

// restoreEffects verifies the steps of a prepared claim and restores its specs. It does nothing if the claim is locked, or was released
// since its record was read. It reports whether a spec with edits was missing. Lost files are fetched before the claim is locked: a slow
// registry must not keep its pod from ending.
func (s *cdiSpecs) restoreEffects(ctx context.Context, read *record.Record) (restored bool, err error) {
	if err := s.Features.restore(ctx, read); err != nil {
		if !s.records.has(read.UID) {
			err = nil
		}
		return false, err
	}
	hold, r, err := s.records.tryLock(read.UID)
	if err != nil || r == nil {
		return false, err
	}
	defer hold.Release()
	there, err := s.Specs.Files()
	if err != nil {
		return false, err
	}
	if err := s.verifySteps(ctx, r); err != nil {
		return false, err
	}
	// Claims of a version that showed kubelet's devices by other names lack those files, and no container needs them.
	gone := slices.ContainsFunc(editFiles(r), func(file string) bool { return !there[file] })
	return gone, s.restoreShared(ctx, r)
}

// sweep removes the spec files that neither a present device nor a claim needs. It locks and reads nothing unless there is a file that
// looks like a leftover.
func (s *cdiSpecs) sweep(ctx context.Context) error {
	machine := s.Machine()
	if machine == nil {
		return nil
	}
	standing := map[string]bool{}
	for _, d := range machine.All() {
		if spec, err := s.Names.Common(d.Edits); err == nil && len(d.Edits.Made) == 0 {
			standing[spec.File] = true
		}
		standing[cdi.ShownFile(string(d.Kind), d.Name)] = true
	}
	candidates, err := s.Specs.Unwanted(func(file string) bool { return standing[file] })
	var shared []string
	errs := []error{err}
	for _, file := range candidates {
		if uid, ok := cdi.ClaimOf(file); ok {
			errs = append(errs, s.sweepOwn(uid, file))
		} else {
			shared = append(shared, file)
		}
	}
	if len(shared) > 0 {
		errs = append(errs, s.sweepShared(ctx, shared))
	}
	return errors.Join(errs...)
}

// sweepOwn removes a claim's own file if the claim has no record and has not lost one.
func (s *cdiSpecs) sweepOwn(uid, file string) error {
	hold, err := s.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	if s.records.has(uid) || s.Store.InDoubt(uid) {
		return nil
	}
	return s.Specs.Sweep([]string{file})
}

// sweepShared removes the shared files that no record names. A Prepare writes its record first and then ensures its specs under the same
// lock. So either the sweep sees the record, or the Prepare writes the file again.
func (s *cdiSpecs) sweepShared(ctx context.Context, files []string) error {
	hold, err := s.Store.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	inUse, err := s.sharedFilesInUse(func(*record.Record) bool { return true })
	if err != nil {
		return err // such a record may name any file: sweep nothing
	}
	return s.Specs.Sweep(slices.DeleteFunc(files, func(file string) bool { return inUse[file] }))
}

// sharedFilesInUse returns the spec files that records name. A record for which counts is false is passed over. If a record cannot be read,
// or was set aside because of that, the files of the others are returned together with the error.
func (s *cdiSpecs) sharedFilesInUse(counts func(*record.Record) bool) (map[string]bool, error) {
	uids, err := s.Store.UIDs()
	if err != nil {
		return nil, err
	}
	inUse := map[string]bool{}
	errs := []error{s.Store.CheckDoubt()}
	for _, uid := range uids {
		r, err := s.Store.Load(uid)
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

// sharedDevice is a CDI device that kubelet got for a claim and that other claims may use, too.
type sharedDevice struct {
	name  string
	edits *container.Edits
}

// sharedDevices lists the CDI devices of a record that are not in the claim's own file.
func sharedDevices(r *record.Record) []sharedDevice {
	var out []sharedDevice
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.CDIDevice != "" && !isOwnDevice(d.CDIDevice) {
			out = append(out, sharedDevice{d.CDIDevice, &d.Edits})
		}
		if d.Added != nil && d.Added.CDIDevice != "" {
			out = append(out, sharedDevice{d.Added.CDIDevice, &d.Added.Edits})
		}
	}
	return out
}

// isOwnDevice reports whether a CDI device is in the file of a single claim.
func isOwnDevice(qualified string) bool { return strings.HasPrefix(qualified, cdi.ClaimKind+"=") }

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

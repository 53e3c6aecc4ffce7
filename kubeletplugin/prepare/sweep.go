// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"

	"github.com/fettle-dev/fettle/cdi"
)

// SweepSpecs removes the spec files that neither a present device nor a claim needs. It locks and reads nothing unless there is a file that
// looks like a leftover.
func (e *Engine) SweepSpecs(ctx context.Context) error {
	machine := e.Machine()
	if machine == nil {
		return nil
	}
	standing := map[string]bool{}
	for _, d := range machine.All() {
		if spec, err := e.Names.Common(d.Edits); err == nil {
			standing[spec.File] = true
		}
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
	inUse, err := e.sharedFilesInUse()
	if err != nil {
		return err // a record that cannot be read may name any file: sweep nothing
	}
	return e.Specs.Sweep(slices.DeleteFunc(files, func(file string) bool { return inUse[file] }))
}

// sharedFilesInUse returns the shared spec files that records name.
func (e *Engine) sharedFilesInUse() (map[string]bool, error) {
	uids, err := e.Store.UIDs()
	if err != nil {
		return nil, err
	}
	inUse := map[string]bool{}
	for _, uid := range uids {
		r, err := e.Store.Load(uid)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, d := range sharedDevices(r) {
			inUse[cdi.FileOf(d.name)] = true
		}
	}
	return inUse, nil
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"slices"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
)

// missing says whether a file that was seen to be needed is gone.
func (e *Engine) missing(expected map[string]bool) bool {
	there, err := e.Specs.Files()
	for file := range expected {
		if err == nil && !there[file] {
			return true
		}
	}
	return false
}

// look sees to it that what a prepared claim was promised is there, and adds its files to expected.
func (e *Engine) look(ctx context.Context, r *record.Record, there, expected map[string]bool) {
	if e.moved(r) {
		if err := e.withdraw(ctx, r.UID); err != nil {
			e.report(ctx, ReasonRecoveryFailed, r, err.Error())
		}
		return
	}
	var gone []string
	for _, file := range files(r) {
		expected[file] = true
		if !there[file] {
			gone = append(gone, file)
		}
	}
	if len(gone) == 0 && len(r.Steps) == 0 {
		return
	}
	restored, err := e.putBack(ctx, r.UID)
	switch {
	case err != nil:
		e.report(ctx, ReasonEffectLost, r, err.Error())
		for _, file := range gone {
			delete(expected, file) // said once a pass, not at every look
		}
	case restored:
		e.report(ctx, ReasonSpecRestored, r, "its CDI specs were gone and are written again")
	}
}

// files are the names of the specs that a record needs.
func files(r *record.Record) []string {
	var out []string
	for i := range r.Steps {
		if r.Steps[i].Kind == cdi.StepKind {
			out = append(out, r.Steps[i].Target)
		}
	}
	for _, promised := range shared(r) {
		out = append(out, cdi.FileOf(promised.name))
	}
	return out
}

// moved says whether a device of a claim has other numbers than the claim was given. A container that starts now would get a node
// that is another device's.
func (e *Engine) moved(r *record.Record) bool {
	machine := e.Machine()
	if machine == nil {
		return false
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, ok := machine.Find(d.Kind(), d.Name)
		if ok && !sameNumbers(d.Edits.Nodes, dev.Edits.Nodes) {
			return true
		}
	}
	return false
}

func sameNumbers(a, b []container.Node) bool {
	return slices.EqualFunc(a, b, func(a, b container.Node) bool {
		return a.Path == b.Path && a.Major == b.Major && a.Minor == b.Minor
	})
}

// withdraw removes the specs of a claim whose devices moved, so that a container which restarts fails instead. They come back with
// the numbers, or in another form when kubelet asks again.
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
	stale := slices.DeleteFunc(files(r), func(file string) bool { return !there[file] })
	if len(stale) == 0 {
		return nil
	}
	hold, err := e.Store.LockSpecs(ctx, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	if err := e.Specs.Sweep(stale); err != nil {
		return err
	}
	e.report(ctx, ReasonDeviceMoved, r, "a device of it got other device numbers: its containers cannot be restarted; delete the pod")
	return nil
}

// putBack verifies a claim's steps and restores its specs, if it is still prepared and nobody works on it. It says whether any spec
// was gone.
func (e *Engine) putBack(ctx context.Context, uid string) (restored bool, err error) {
	hold, r, err := e.tryLock(uid)
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
	gone := slices.ContainsFunc(files(r), func(file string) bool { return !there[file] })
	return gone, e.restore(ctx, r)
}

// tryLock takes a claim if it is prepared and nobody works on it, and returns no record otherwise.
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

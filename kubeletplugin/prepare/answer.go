// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Resolve returns what a claim holds, under the policies that Prepare applies.
func (e *Engine) Resolve(ctx context.Context, c *resourceapi.ResourceClaim) (claim.Allocation, error) {
	allocation, _, err := e.resolve(ctx, c)
	return allocation, err
}

// resolve resolves an allocation. Policies are read from the classes as they are now, unless the claim holds its devices since this boot:
// that was decided, and an edit of a class must not stop the pod. recorded reports the latter.
func (e *Engine) resolve(ctx context.Context, c *resourceapi.ResourceClaim) (a claim.Allocation, recorded bool, err error) {
	in := claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: e.Node}
	if old, err := e.Store.Load(string(c.UID)); err == nil {
		a, err := claim.Resolve(in)
		if err != nil || e.isHeld(old, a) {
			return a, true, err
		}
		in.Prepared = wasPrepared(old, a)
	}
	if in.Classes, err = e.Classes(ctx, claim.ClassNames(in)); err != nil {
		return claim.Allocation{}, false, fmt.Errorf("read the classes of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	a, err = claim.Resolve(in)
	return a, false, err
}

// wasPrepared reports whether a claim was prepared with the devices of an allocation, in this boot or an earlier one.
func wasPrepared(old *record.Record, a claim.Allocation) bool {
	return (old.Phase == record.Prepared || old.Phase == record.Renewing) && matchesAllocation(old, a)
}

// isHeld reports whether a claim was prepared with the devices of an allocation in this boot. old may be nil.
func (e *Engine) isHeld(old *record.Record, a claim.Allocation) bool {
	return old != nil && old.BootID == e.BootID && wasPrepared(old, a)
}

// ensureSpecs writes missing shared specs. Its lock keeps SweepSpecs from removing any meanwhile.
func (e *Engine) ensureSpecs(ctx context.Context, shared []cdi.Spec) error {
	if len(shared) == 0 {
		return nil
	}
	hold, err := e.Store.LockSpecs(ctx, false)
	if err != nil {
		return err
	}
	defer hold.Release()
	for _, spec := range shared {
		if err := e.Specs.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}

// verify checks that all that an earlier Prepare did is still there, and restores what it can.
func (e *Engine) verify(ctx context.Context, r *record.Record) error {
	if err := e.Store.Acquire(r); err != nil {
		return err
	}
	if err := e.verifySteps(ctx, r); err != nil {
		return err
	}
	return e.restoreSpecs(ctx, r)
}

// verifySteps checks each effect of an earlier Prepare.
func (e *Engine) verifySteps(ctx context.Context, r *record.Record) error {
	if err := e.Features.restore(ctx, r); err != nil {
		return err
	}
	for _, s := range r.Steps {
		if err := e.kinds.Verify(ctx, s.Step); err != nil {
			return err
		}
	}
	return nil
}

// restoreSpecs writes the missing shared specs of a record again.
func (e *Engine) restoreSpecs(ctx context.Context, r *record.Record) error {
	missing, err := shownSpecs(r)
	if err != nil {
		return err
	}
	for _, d := range sharedDevices(r) {
		spec, there, err := e.commonSpec(*d.edits, d.name)
		if err != nil {
			return err
		}
		if !there {
			missing = append(missing, spec)
		}
	}
	return e.ensureSpecs(ctx, missing)
}

// commonSpec returns the common spec of edits under the name that a record has for them, or under a new name if recorded is empty. A name
// outlives the version of Fettle and the secret that made it. A file under such a name stays as it is, and there says so.
func (e *Engine) commonSpec(edits container.Edits, recorded string) (spec cdi.Spec, there bool, err error) {
	spec, err = e.Names.Common(edits)
	switch {
	case err != nil || recorded == "" || recorded == spec.Device:
		return spec, false, err
	case e.Specs.Has(recorded):
		return cdi.Spec{Device: recorded}, true, nil
	}
	spec, err = cdi.CommonAs(recorded, edits)
	return spec, false, err
}

// sameAnswer reports whether the answer in the old record still fits the machine. The plan has the record's names for edits that did not
// change.
func (e *Engine) sameAnswer(old, planned *record.Record) bool {
	for i := range old.Devices {
		was, is := &old.Devices[i], &planned.Devices[i]
		if !equality.Semantic.DeepEqual(was.Edits, is.Edits) || was.CDIDevice != is.CDIDevice || was.Place.Moved(is.Place) {
			return false
		}
		if was.Added != nil && (is.Added == nil || was.Added.CDIDevice != is.Added.CDIDevice || was.Added.OwnDevice != is.Added.OwnDevice) {
			return false
		}
	}
	return true
}

// matchesAllocation reports whether a record holds exactly the devices of an allocation.
func matchesAllocation(r *record.Record, a claim.Allocation) bool {
	if r == nil || len(r.Devices) != len(a.Results) {
		return false
	}
	for i := range a.Results {
		d, result := &r.Devices[i], &a.Results[i]
		if d.Request != result.Request || d.Pool != result.Pool || d.Name != result.Device || d.AdminAccess != result.AdminAccess ||
			d.ShareID != shareID(result) {
			return false
		}
	}
	return true
}

func deviceNames(a claim.Allocation) []string {
	var names []string
	for i := range a.Results {
		if r := &a.Results[i]; !r.AdminAccess {
			names = append(names, r.Pool+"/"+r.Device)
		}
	}
	return names
}

// heldNames returns the names of a record's devices, as POOL/NAME, without those for admin access.
func heldNames(devices []record.Device) []string {
	var names []string
	for i := range devices {
		if d := &devices[i]; !d.AdminAccess {
			names = append(names, d.Pool+"/"+d.Name)
		}
	}
	return names
}

func containsStep(steps []record.Step, s step.Step) bool {
	return slices.ContainsFunc(steps, func(other record.Step) bool { return other.Same(s) })
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

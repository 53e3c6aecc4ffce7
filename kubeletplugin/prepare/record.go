// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// records are the claims' records on disk, and the locks under which they are read and written.
type records struct {
	*Config
	// holdings are what the records make the node hold.
	holdings holdings
}

// has reports whether a claim has a record that is not released, readable or not.
func (s *records) has(uid string) bool {
	found, err := s.Store.Load(uid)
	if err == nil {
		return !found.Released()
	}
	return !isNotExist(err) || s.Store.InDoubt(uid)
}

// lock locks the claim of an operation, the devices of its allocation and those of its record. It returns the record, or nil if there is
// none. A damaged record is set aside.
func (s *records) lock(ctx context.Context, op *operation, devices []string) (*record.Hold, *record.Record, error) {
	op.setActivity("waits for other work on the claim")
	hold, err := s.Store.LockClaim(ctx, op.uid)
	if err != nil {
		return nil, nil, err
	}
	r, err := s.load(ctx, op.uid, &op.reading)
	if err == nil {
		op.inDoubt = r == nil && s.Store.InDoubt(op.uid)
		op.setActivity("waits for its devices")
		err = hold.Devices(ctx, append(devices, heldNames(s.linked(op, r))...))
	}
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	return hold, r, nil
}

// linked returns the devices of a record. If the record is lost, it finds the devices with a link of the claim.
func (s *records) linked(op *operation, r *record.Record) []record.Device {
	if r != nil {
		return r.Devices
	}
	machine := s.Machine()
	if machine == nil || !op.inDoubt {
		return nil
	}
	devices, _, err := s.Store.LinkedTo(op.uid, s.listed(machine))
	if err != nil { // about other devices only, see holdsMore
		klog.FromContext(op.ctx).Error(err, "The devices of a claim whose record is damaged may be more than the machine has", "claimUID", op.uid)
	}
	return devices
}

// heldAgain returns the entry of a device in a record that is made again. It says what the device is, since the device may get another name
// before it is given back.
func heldAgain(node string, d *device.Device) record.Device {
	return record.Device{Pool: device.PoolName(node, d.Kind), Name: d.Name, Edits: d.Edits, Place: d.Place, Consumes: consumed(d)}
}

// load reads a record and returns nil if there is none. The caller has locked the claim.
func (s *records) load(ctx context.Context, uid string, last *record.Reading) (*record.Record, error) {
	r, err := last.Load(s.Store, uid)
	switch {
	case isNotExist(err):
		return nil, nil //nolint:nilnil // documented above
	case errors.Is(err, record.ErrDamaged):
		if aside := s.Store.SetAside(uid); aside != nil {
			return nil, errors.Join(err, aside)
		}
		s.report(ctx, ReasonRecordDamaged, &record.Record{UID: uid}, err.Error()+
			": it was set aside; the claim is prepared again or given back when kubelet asks")
		return nil, nil //nolint:nilnil // documented above
	}
	return r, err
}

// tryLock locks a claim and returns its record if the claim is prepared and no other work has locked it. Otherwise it returns no record.
func (s *records) tryLock(uid string) (*record.Hold, *record.Record, error) {
	hold, err := s.Store.TryLockClaim(uid)
	if err != nil || hold == nil {
		return nil, nil, err
	}
	r, err := s.Store.Load(uid)
	if err == nil && r.Phase == record.Prepared {
		return hold, r, nil
	}
	hold.Release()
	if isNotExist(err) {
		err = nil
	}
	return nil, nil, err
}

// rebuild makes a record for a claim whose record is lost, so that the claim can be released. The devices come from the owner links.
// The effects on them are unknown, so the record lists every step that may have run. The caller has locked the claim and the devices.
func (s *records) rebuild(op *operation) (*record.Record, error) {
	machine := s.Machine()
	if machine == nil {
		return nil, errNotScanned
	}
	r := &record.Record{UID: op.uid, BootID: s.BootID, Phase: record.Releasing, Devices: s.linked(op, nil)}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, _ := machine.Find(d.Kind(), d.Name)
		steps, err := s.Features.leftovers(op.ctx, r.UID, dev)
		if err != nil {
			return nil, err
		}
		addMissing(r, steps)
	}
	if err := s.Store.Create(r); err != nil {
		// A full disk must not keep pods from ending. The damaged file stays until all is undone, so the next try finds the claim in doubt again.
		klog.FromContext(op.ctx).Error(err, "The release of a claim whose record is damaged is not recorded", "claimUID", op.uid)
	}
	return r, nil
}

// holdsMore reports whether a claim whose record was lost holds a device that its record, which was made again, is without. Without such a
// record: one that the machine does not have now, or the configuration has no more. What was done to it cannot be undone before it is back.
func (s *records) holdsMore(uid string, r *record.Record) (bool, error) {
	if !s.Store.InDoubt(uid) {
		return false, nil
	}
	machine := s.Machine()
	if machine == nil {
		return false, errNotScanned
	}
	var known []record.Device
	if r != nil {
		known = slices.DeleteFunc(slices.Clone(r.Devices), func(d record.Device) bool { return d.AdminAccess })
	} else {
		known = s.listed(machine)
	}
	_, more, err := s.Store.LinkedTo(uid, known)
	return more, err
}

// listed returns entries for all devices of the machine.
func (s *records) listed(machine Machine) []record.Device {
	var all []record.Device
	for _, d := range machine.All() {
		all = append(all, heldAgain(s.Node, &d))
	}
	return all
}

// create creates the record of a claim that holds nothing yet, if what its steps need fits into the node's budget. Callers that
// need something of the budget decide and create one after the other, so two of them cannot both get what is left. A
// claim in doubt keeps the devices that it has if its record cannot be created.
func (s *records) create(ctx context.Context, r *record.Record, inDoubt bool) error {
	asked, err := s.holdings.of(r)
	if err != nil {
		return err
	}
	return s.checkOverlaps(ctx, r, func() error { return s.createAsked(ctx, r, &asked, inDoubt) })
}

// createAsked creates a record if what it asks for fits into the node's budget.
func (s *records) createAsked(ctx context.Context, r *record.Record, asked *budget.Holding, inDoubt bool) error {
	if len(asked.Needs) > 0 {
		hold, err := s.Store.LockBudget(ctx)
		if err != nil {
			return err
		}
		defer hold.Release()
		held, err := s.holdings.ofOthers(r.UID)
		if err != nil {
			return err
		}
		if err := s.Limits.Check(*asked, held); err != nil {
			return err
		}
	}
	if err := s.Store.Acquire(r); err != nil {
		return err
	}
	err := s.Store.Create(r)
	if err != nil && !inDoubt {
		err = errors.Join(err, s.Store.Remove(r))
	}
	return err
}

// checkOverlaps calls write, which writes a record, unless another claim holds something that overlaps a device of the record. What
// overlaps a device that left since the claim was planned cannot be told.
func (s *records) checkOverlaps(ctx context.Context, r *record.Record, write func() error) error {
	machine := s.Machine()
	if machine == nil {
		return errNotScanned
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		if _, there := machine.Find(d.Kind(), d.Name); !there && !d.AdminAccess {
			return s.gone(d.Pool, d.Name)
		}
	}
	return s.conflicts(machine).Overlaps(ctx, r, write)
}

// gone refuses a device that is not in the machine.
func (s *records) gone(pool, name string) error {
	return fmt.Errorf("device %s/%s: %w, see AcceleratorNode %s; retried until it is back", pool, name, ErrDeviceGone, s.Node)
}

func (s *records) conflicts(machine Machine) conflict.Check {
	return conflict.Check{Store: s.Store, Machine: machine, Node: s.Node, BootID: s.BootID}
}

// interrupted reports whether a process ended in the middle of a Prepare or Unprepare. kubelet does not have the answer that the claim is
// prepared.
func interrupted(r *record.Record) bool {
	return r.Phase == record.Intended || r.Phase == record.Releasing
}

// wasPrepared reports whether a claim was prepared with the devices of an allocation, in this boot or an earlier one.
func wasPrepared(old *record.Record, a claim.Allocation) bool {
	return (old.Phase == record.Prepared || old.Phase == record.Renewing) && matchesAllocation(old, a)
}

// isHeldIn reports whether a claim was prepared with the devices of an allocation in a boot. old may be nil.
func isHeldIn(bootID string, old *record.Record, a claim.Allocation) bool {
	return old != nil && old.BootID == bootID && wasPrepared(old, a)
}

// sameAnswer reports whether the answer in the old record still fits the machine. The plan has the record's names for edits that did not
// change.
func sameAnswer(old, planned *record.Record) bool {
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

func shareID(r *claim.Result) string {
	if r.ShareID == nil {
		return ""
	}
	return string(*r.ShareID)
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

// addMissing adds the steps that a record does not have yet.
func addMissing(r *record.Record, steps []step.Step) {
	for _, s := range steps {
		if !containsStep(r.Steps, s) {
			addStep(r, s)
		}
	}
}

func addStep(r *record.Record, s step.Step) {
	r.Steps = append(r.Steps, record.Step{Step: s, State: step.Intended})
}

func containsStep(steps []record.Step, s step.Step) bool {
	return slices.ContainsFunc(steps, func(other record.Step) bool { return other.Same(s) })
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

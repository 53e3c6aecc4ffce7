// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// errDeviceGone is about a device that was published when the claim was allocated.
var errDeviceGone = errors.New("is not on this node any more, it left or its driver did")

// preparer makes and unmakes what one claim needs on this node. All it remembers is on disk.
type preparer struct {
	node     string
	hostRoot string
	bootID   string
	store    *record.Store
	specs    *cdi.Dir
	steps    step.Kinds
}

// prepare gives a claim its devices and returns what kubelet must know. It may be called again at any time: a claim that holds
// the same devices since this boot is answered from its record.
func (p *preparer) prepare(ctx context.Context, v *view, c *resourceapi.ResourceClaim) (*record.Record, error) {
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: p.node})
	if err != nil {
		return nil, err
	}
	unlock, err := p.store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()

	old, err := p.store.Load(string(c.UID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if old != nil && !holds(old, allocation) {
		if err := p.release(ctx, old); err != nil {
			return nil, fmt.Errorf("give back what the claim held before: %w", err)
		}
		old = nil
	}
	if old != nil && old.BootID == p.bootID {
		return old, p.verify(ctx, old)
	}
	// A record of an earlier boot keeps its effects, as a pod keeps its volumes, but the numbers of device nodes are read anew.
	r, specs, err := p.plan(v, c, allocation, old)
	if err != nil {
		return nil, err
	}
	if old != nil {
		return r, p.renew(ctx, r, specs)
	}
	return r, p.commit(ctx, r, specs)
}

// knows says whether a claim has a record, readable or not.
func (p *preparer) knows(uid string) bool {
	_, err := p.store.Load(uid)
	return !errors.Is(err, fs.ErrNotExist)
}

// unprepare gives back what a claim holds and returns what that was. A claim without a record holds nothing: nil, nil.
func (p *preparer) unprepare(ctx context.Context, uid string) (*record.Record, error) {
	unlock, err := p.store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := p.store.Load(uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented above: nothing was held
	}
	if err != nil {
		return nil, err
	}
	return r, p.release(ctx, r)
}

// plan decides everything and changes nothing. The steps of an earlier boot's record stay as they were recorded.
func (p *preparer) plan(v *view, c *resourceapi.ResourceClaim, a claim.Allocation, old *record.Record) (*record.Record, []cdi.Spec, error) {
	r := &record.Record{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), BootID: p.bootID}
	specs := make([]cdi.Spec, 0, len(a.Results))
	for i := range a.Results {
		result := &a.Results[i]
		dev, ok := v.find(result.Kind, result.Device)
		if !ok {
			return nil, nil, fmt.Errorf("device %s/%s: %w, see AcceleratorNode %s; retried until it is back",
				result.Pool, result.Device, errDeviceGone, p.node)
		}
		edits, err := claim.Edits(*result, dev)
		if err != nil {
			return nil, nil, err
		}
		spec, err := cdi.Common(edits)
		if err != nil {
			return nil, nil, err
		}
		specs = append(specs, spec)
		r.Devices = append(r.Devices, record.Device{
			Request: result.Request, Pool: result.Pool, Name: result.Device, AdminAccess: result.AdminAccess,
			CDIDevice: spec.Device, Edits: edits,
		})
		if old != nil || !lends(result) {
			continue
		}
		for _, mount := range dev.Edits.Mounts {
			lend, err := hostdir.Plan(p.hostRoot, mount.HostPath, r.UID)
			if err != nil {
				return nil, nil, err
			}
			r.Steps = append(r.Steps, lend)
		}
	}
	if old != nil {
		r.Steps = old.Steps
	}
	return r, specs, nil
}

// lends says whether a result borrows a directory that is emptied afterwards.
func lends(r *claim.Result) bool {
	return !r.AdminAccess && r.Config.Host != nil && r.Config.Host.OnRelease == v1alpha1.OnReleaseEmpty
}

// commit writes the record first, so that whatever happens next is known to the next process, and undoes all of it where a part
// fails.
func (p *preparer) commit(ctx context.Context, r *record.Record, specs []cdi.Spec) error {
	if err := p.store.Save(r); err != nil {
		return err
	}
	if err := p.store.Acquire(r); err != nil {
		return errors.Join(err, p.store.Remove(r))
	}
	err := p.steps.Apply(ctx, r.Steps)
	for i := 0; err == nil && i < len(specs); i++ {
		err = p.specs.Ensure(specs[i])
	}
	if err != nil {
		return errors.Join(err, p.release(ctx, r))
	}
	return nil
}

// takeEffect makes the claim the holder of its devices and applies its steps, both of which may have been done before.
func (p *preparer) takeEffect(ctx context.Context, r *record.Record) error {
	if err := p.store.Acquire(r); err != nil {
		return err
	}
	return p.steps.Apply(ctx, r.Steps)
}

// renew brings a record of an earlier boot up to date. Nothing is undone where a part fails: what the claim wrote is still its own,
// and the old record makes the next call try again.
func (p *preparer) renew(ctx context.Context, r *record.Record, specs []cdi.Spec) error {
	if err := p.takeEffect(ctx, r); err != nil {
		return err
	}
	for _, spec := range specs {
		if err := p.specs.Ensure(spec); err != nil {
			return err
		}
	}
	return p.store.Save(r)
}

// release undoes the steps and forgets the claim. The record stays where a step could not be undone, so that it is tried again.
func (p *preparer) release(ctx context.Context, r *record.Record) error {
	if err := p.steps.Undo(ctx, r.Steps); err != nil {
		return err
	}
	return p.store.Remove(r)
}

// verify makes what an earlier Prepare did be there again: the CDI directory may have been wiped since.
func (p *preparer) verify(ctx context.Context, r *record.Record) error {
	// The Prepare that wrote the record may have been cut off right after: what it meant to do is done, or done again.
	if err := p.takeEffect(ctx, r); err != nil {
		return err
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		if p.specs.Has(d.CDIDevice) {
			continue
		}
		spec, err := cdi.Common(d.Edits)
		if err != nil {
			return err
		}
		if spec.Device != d.CDIDevice {
			return fmt.Errorf("CDI spec %s of claim %s/%s is gone and this version of Fettle would write it as %s: restart the pod",
				d.CDIDevice, r.Namespace, r.Name, spec.Device)
		}
		if err := p.specs.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}

// holds says whether a record is the answer to an allocation.
func holds(r *record.Record, a claim.Allocation) bool {
	if len(r.Devices) != len(a.Results) {
		return false
	}
	for i := range a.Results {
		d, result := &r.Devices[i], &a.Results[i]
		if d.Request != result.Request || d.Pool != result.Pool || d.Name != result.Device || d.AdminAccess != result.AdminAccess {
			return false
		}
	}
	return true
}

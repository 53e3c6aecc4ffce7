// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// ErrDeviceGone is about a device that was published when the claim was allocated.
var ErrDeviceGone = errors.New("is not on this node any more, it left or its driver did")

// errUnseen is returned for what needs the machine before it was looked at.
var errUnseen = errors.New("the machine was not looked at yet: kubelet tries again")

// plan is everything that a Prepare will do.
type plan struct {
	record *record.Record
	// specs are the specs of devices as they are, and of features, which other claims may use, too.
	specs []cdi.Spec
	// owned are edits that only this claim has; named is told the name of the CDI device for each.
	owned []container.Edits
	named []func(name string)
}

func (p *plan) own(edits container.Edits, named func(name string)) {
	p.owned, p.named = append(p.owned, edits), append(p.named, named)
}

// plan decides everything and changes nothing. A step of the claim's earlier record stays as it was recorded: it remembers what was
// there before.
func (e *Engine) plan(ctx context.Context, in asked, old *record.Record) (plan, error) {
	c, a := in.claim, in.allocation
	r := &record.Record{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), BootID: e.BootID}
	p := plan{record: r}
	machine := e.Machine()
	if machine == nil {
		return plan{}, errUnseen
	}
	for i := range a.Results {
		if err := e.planDevice(&p, in, &a.Results[i], old, machine); err != nil {
			return plan{}, err
		}
	}
	if err := e.contributions(ctx, &p, in, old, machine); err != nil {
		return plan{}, err
	}
	if err := p.write(); err != nil {
		return plan{}, err
	}
	r.Phase = record.Prepared
	if len(r.Steps) > 0 {
		r.Phase = record.Intended
	}
	return p, nil
}

// planDevice adds one of the allocated devices.
func (e *Engine) planDevice(p *plan, in asked, result *claim.Result, old *record.Record, machine Machine) error {
	dev, ok := machine.Find(result.Kind, result.Device)
	if !ok {
		return fmt.Errorf("device %s/%s: %w, see AcceleratorNode %s; retried until it is back",
			result.Pool, result.Device, ErrDeviceGone, e.Node)
	}
	if old == nil { // a claim that has nothing yet
		if err := e.Health.Check(in.claim, result); err != nil {
			return err
		}
		if err := e.mayMeet(in.claim, result, dev, machine); err != nil {
			return err
		}
	}
	edits, err := claim.Edits(*result, dev)
	if err != nil {
		return err
	}
	r, d := p.record, describe(result, edits)
	if edits.Empty() {
		r.Devices = append(r.Devices, d) // a look that shows nothing in the container
		return nil
	}
	common, err := p.common(&d, dev)
	if err != nil {
		return err
	}
	if !common {
		i := len(r.Devices)
		p.own(edits, func(name string) { r.Devices[i].CDIDevice = name })
	}
	r.Devices = append(r.Devices, d)
	return nil
}

// common gives a device that is as it is for everybody the spec that everybody uses.
func (p *plan) common(d *record.Device, dev device.Device) (bool, error) {
	if !equality.Semantic.DeepEqual(d.Edits, dev.Edits) {
		return false, nil
	}
	spec, err := cdi.Common(d.Edits)
	if err != nil {
		return false, err
	}
	d.CDIDevice = spec.Device
	p.specs = append(p.specs, spec)
	return true, nil
}

// describe is what a record keeps of a result.
func describe(result *claim.Result, edits container.Edits) record.Device {
	d := record.Device{
		Request: result.Request, Pool: result.Pool, Name: result.Device, ShareID: shareID(result), AdminAccess: result.AdminAccess,
		Effect: result.Effect(), Edits: edits,
	}
	if result.Config.FPGA != nil {
		d.CoTenancy = string(result.Config.FPGA.CoTenancy)
	}
	return d
}

// write adds the step that writes the claim's own specs. It is the last, so that a container finds everything else in place.
func (p *plan) write() error {
	if len(p.owned) == 0 {
		return nil
	}
	spec, names, err := cdi.OfClaim(p.record.UID, p.owned)
	if err != nil {
		return err
	}
	for i, named := range p.named {
		named(names[i])
	}
	s, err := cdi.Step(spec)
	add(p.record, s)
	return err
}

// own says whether a CDI device is of a claim's own file.
func own(qualified string) bool { return strings.HasPrefix(qualified, cdi.ClaimKind+"=") }

func shareID(r *claim.Result) string {
	if r.ShareID == nil {
		return ""
	}
	return string(*r.ShareID)
}

// rebuild makes a record for a claim whose own is lost, from what the devices' links tell, so that it can be given back. What it
// had done to them is not known: everything that could have been is undone. The caller holds the claim and the devices.
func (e *Engine) rebuild(op *operation) (*record.Record, error) {
	machine := e.Machine()
	if machine == nil {
		return nil, errUnseen
	}
	r := &record.Record{UID: op.uid, BootID: e.BootID, Phase: record.Releasing, Devices: e.linked(op, nil)}
	for i := range r.Devices {
		d := &r.Devices[i]
		dev, _ := machine.Find(d.Kind(), d.Name)
		if err := e.addLeftovers(op.ctx, r, dev); err != nil {
			return nil, err
		}
	}
	return r, e.Store.Create(r)
}

// addLeftovers adds the steps that a claim whose record is lost may have had for a device.
func (e *Engine) addLeftovers(ctx context.Context, r *record.Record, dev device.Device) error {
	for _, f := range e.Features {
		steps, err := f.Leftovers(ctx, r.UID, dev)
		if err != nil {
			return err
		}
		for _, s := range steps {
			if !contains(r.Steps, s) {
				add(r, s)
			}
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
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
		if err != nil || isHeldIn(e.BootID, old, a) {
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

// plan is everything that a Prepare will do.
type plan struct {
	record *record.Record
	// specs are the specs that other claims may use, too: of unchanged devices and of features.
	specs []cdi.Spec
	// owned are edits of this claim only. setName receives the name of the CDI device for each.
	owned   []cdi.Own
	setName []func(name string)
	// check asks again whether the claim must not get its devices now.
	check func() error
}

func (p *plan) addOwnEdits(own cdi.Own, setName func(name string)) {
	p.owned, p.setName = append(p.owned, own), append(p.setName, setName)
}

// plan decides everything and changes nothing. A step in the claim's old record stays as recorded, since its parameters hold the state from
// before the step.
func (e *Engine) plan(ctx context.Context, in input, old *record.Record) (plan, error) {
	c, a := in.claim, in.allocation
	r := &record.Record{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), BootID: e.BootID}
	p := plan{record: r, check: func() error { return e.checkHealth(in) }}
	machine := e.Machine()
	if machine == nil {
		return plan{}, errNotScanned
	}
	if err := e.setTenant(ctx, r, in, old); err != nil {
		return plan{}, err
	}
	for i := range a.Results {
		if err := e.planDevice(&p, in, &a.Results[i], old, machine); err != nil {
			return plan{}, err
		}
	}
	if err := e.addContributions(ctx, &p, in, old, machine); err != nil {
		return plan{}, err
	}
	if err := e.addSpecStep(&p); err != nil {
		return plan{}, err
	}
	r.Phase = record.Prepared
	if len(r.Steps) > 0 {
		r.Phase = record.Intended
	}
	return p, nil
}

// checkHealth refuses a claim one of whose devices it must not get now.
func (e *Engine) checkHealth(in input) error {
	for i := range in.allocation.Results {
		if err := e.Health.Check(in.claim, &in.allocation.Results[i]); err != nil {
			return err
		}
	}
	return nil
}

// setTenant notes the namespace of a claim with regions by its UID, since a namespace that was deleted and made again is another tenant.
// A claim stays the tenant that its record says.
func (e *Engine) setTenant(ctx context.Context, r *record.Record, in input, old *record.Record) (err error) {
	hasRegion := func(r claim.Result) bool { return r.Config.FPGA != nil && !r.AdminAccess }
	switch {
	case old != nil:
		r.NamespaceUID = old.NamespaceUID
	case in.namespaceUID != "":
		r.NamespaceUID = in.namespaceUID
	case slices.ContainsFunc(in.allocation.Results, hasRegion):
		r.NamespaceUID, err = e.NamespaceUID(ctx, r.Namespace)
	}
	return err
}

// planDevice adds one of the allocated devices to the plan.
func (e *Engine) planDevice(p *plan, in input, result *claim.Result, old *record.Record, machine Machine) error {
	if old == nil { // the claim holds nothing yet
		if err := e.Health.Check(in.claim, result); err != nil {
			return err
		}
	}
	dev, ok := machine.Find(result.Kind, result.Device)
	if !ok {
		return fmt.Errorf("device %s/%s: %w, see AcceleratorNode %s; retried until it is back",
			result.Pool, result.Device, ErrDeviceGone, e.Node)
	}
	if old == nil {
		if err := e.records.conflicts(machine).CoTenancy(p.record, result, dev); err != nil {
			return err
		}
	}
	e.Features.settle(result, dev)
	if old != nil && old.BootID == e.BootID {
		return e.addDevice(p, result, dev, &old.Devices[len(p.record.Devices)])
	}
	return e.addDevice(p, result, dev, nil)
}

// addDevice adds a device to the plan. Before is its entry in the claim's record of this boot, nil if there is none.
func (e *Engine) addDevice(p *plan, result *claim.Result, dev device.Device, before *record.Device) error {
	edits, err := claim.Edits(*result, dev)
	if err != nil {
		return err
	}
	keepNodes(before, &edits)
	d := deviceRecord(result, dev, edits)
	keepSetting(before, &d)
	if err := conflict.Moved(before, &d); err != nil {
		return err
	}
	r := p.record
	if edits.Empty() {
		r.Devices = append(r.Devices, d) // admin access without any edit
		return nil
	}
	recorded := recordedName(before, edits)
	isCommon := (recorded != "" || equality.Semantic.DeepEqual(edits, dev.Edits)) && len(edits.Made) == 0 && !isOwnDevice(recorded)
	if isCommon {
		if d.CDIDevice, err = e.addCommonSpec(p, edits, recorded); err != nil {
			return err
		}
	} else {
		i := len(r.Devices)
		p.addOwnEdits(cdi.Own{Edits: edits, Name: recorded}, func(name string) { r.Devices[i].CDIDevice = name })
	}
	r.Devices = append(r.Devices, d)
	return nil
}

// keepNodes leaves a device with the nodes of its record while these are still its own: within a boot, a node that comes or goes beside
// them needs no new answer.
func keepNodes(before *record.Device, edits *container.Edits) {
	if before == nil {
		return
	}
	if was := before.Edits; len(was.Nodes) > 0 && slices.Equal(was.Made, edits.Made) && sameNumbers(was, *edits) {
		edits.Nodes = was.Nodes
	}
}

// keepSetting leaves a device with the setting of its record: it is decided once within a boot, as contributions are.
func keepSetting(before, d *record.Device) {
	if before != nil {
		d.Effect, d.Setting = before.Effect, before.Setting
	}
}

// recordedName returns the CDI device that kubelet got for a device in this boot, or "" if it got none for the same edits. kubelet hands
// that name to every restart of a container, so it stays, whichever version of Fettle made it.
func recordedName(before *record.Device, edits container.Edits) string {
	if before == nil || !equality.Semantic.DeepEqual(before.Edits, edits) {
		return ""
	}
	return before.CDIDevice
}

// deviceRecord returns the record's entry for a result.
func deviceRecord(result *claim.Result, dev device.Device, edits container.Edits) record.Device {
	d := record.Device{
		Request: result.Request, Pool: result.Pool, Name: result.Device, ShareID: shareID(result), AdminAccess: result.AdminAccess,
		Effect: result.Effect(), Setting: result.Setting(), Memory: result.Memory(), Edits: edits, Place: dev.Place,
	}
	if result.Config.FPGA != nil {
		d.CoTenancy = string(result.Config.FPGA.CoTenancy)
	}
	if len(dev.Consumes) > 0 && !d.AdminAccess {
		d.Consumes = map[string]string{}
		for name, counter := range dev.Consumes {
			d.Consumes[name] = counter.Value.String()
		}
	}
	return d
}

// addSpecStep adds the step that writes the claim's own specs. It is the last step, so that a container finds all other effects in place.
func (e *Engine) addSpecStep(p *plan) error {
	if len(p.owned) == 0 {
		return nil
	}
	spec, names, err := e.Names.OfClaim(p.record.UID, p.owned)
	if err != nil {
		return err
	}
	for i, setName := range p.setName {
		setName(names[i])
	}
	s, err := cdi.Step(spec)
	addStep(p.record, s)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// plan is everything that a Prepare will do.
type plan struct {
	record *record.Record
	// shared are the specs that other claims may use, too: of unchanged devices and of features.
	shared []cdi.Spec
	// owned are edits of this claim only. setName receives the name of the CDI device for each.
	owned   []cdi.Own
	setName []func(name string)
	// specs knows the names of specs that are on disk.
	specs *cdiSpecs
	// check asks again whether the claim must not get its devices now.
	check func() error
}

func (p *plan) addOwnEdits(own cdi.Own, setName func(name string)) {
	p.owned, p.setName = append(p.owned, own), append(p.setName, setName)
}

// addDevice adds a device to the plan. Before is its entry in the claim's record of this boot, nil if there is none.
func (p *plan) addDevice(result *claim.Result, dev device.Device, before *record.Device) error {
	edits, err := claim.Edits(*result, dev)
	if err != nil {
		return err
	}
	keepNodes(before, &edits)
	d := deviceRecord(result, dev, edits)
	keepDecided(before, &d)
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
		if d.CDIDevice, err = p.addCommonSpec(edits, recorded); err != nil {
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

// keepDecided leaves a device with the setting and the rule of its record: they are decided once within a boot, as contributions are.
func keepDecided(before, d *record.Device) {
	if before != nil {
		d.Effect, d.Setting, d.Memory, d.CoTenancy = before.Effect, before.Setting, before.Memory, before.CoTenancy
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
	if !d.AdminAccess {
		d.Consumes = consumed(&dev)
	}
	return d
}

// consumed returns what a device takes of the counters of its card, as records have it.
func consumed(d *device.Device) map[string]string {
	if len(d.Consumes) == 0 {
		return nil
	}
	out := map[string]string{}
	for name, counter := range d.Consumes {
		out[name] = counter.Value.String()
	}
	return out
}

// addSpecStep adds the step that writes the claim's own specs. It is the last step, so that a container finds all other effects in place.
func (p *plan) addSpecStep() error {
	if len(p.owned) == 0 {
		return nil
	}
	spec, names, err := p.specs.Names.OfClaim(p.record.UID, p.owned)
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

// addContribution adds one feature's contribution to the plan, and its edits to those of the other features.
func (p *plan) addContribution(feature string, c *Contribution, edits map[string]Edits) {
	for request, more := range c.Edits {
		sum := edits[request]
		sum.Shared, sum.Own = sum.Shared.With(more.Shared), sum.Own.With(more.Own)
		edits[request] = sum
	}
	addMissing(p.record, c.Steps) // two requests of a claim may need the same step
	if c.Decision == nil {
		return
	}
	if p.record.Decisions == nil {
		p.record.Decisions = map[string]json.RawMessage{}
	}
	p.record.Decisions[feature] = c.Decision
}

// assignEdits gives each request's edits to the first of its devices. The other devices would only repeat them.
func (p *plan) assignEdits(edits map[string]Edits) error {
	for i := range p.record.Devices {
		base := resourceclaim.BaseRequestRef(p.record.Devices[i].Request)
		found, ok := edits[base]
		if !ok {
			continue
		}
		delete(edits, base)
		if found.Empty() {
			continue
		}
		if err := p.addEdits(&p.record.Devices[i], record.Addition{Edits: found.Shared, Own: found.Own}); err != nil {
			return fmt.Errorf("request %s: %w", base, err)
		}
	}
	if len(edits) > 0 {
		return fmt.Errorf("edits were planned for requests %v, of which the claim has no device", slices.Sorted(maps.Keys(edits)))
	}
	return nil
}

// addEdits adds edits to a device. The shared edits get a spec of their own. Edits that have a name already keep it.
func (p *plan) addEdits(d *record.Device, named record.Addition) error {
	added := &record.Addition{Edits: named.Edits, Own: named.Own}
	d.Added = added
	if !named.Own.Empty() {
		p.addOwnEdits(cdi.Own{Edits: named.Own, Name: named.OwnDevice}, func(name string) { added.OwnDevice = name })
	}
	if named.Edits.Empty() {
		return nil
	}
	name, err := p.addCommonSpec(named.Edits, named.CDIDevice)
	added.CDIDevice = name
	return err
}

// addCommonSpec adds the common spec of edits to the plan and returns its name. It is the recorded one, unless that is empty.
func (p *plan) addCommonSpec(edits container.Edits, recorded string) (string, error) {
	spec, there, err := p.specs.common(edits, recorded)
	if err != nil {
		return "", err
	}
	if !there {
		p.shared = append(p.shared, spec)
	}
	return spec.Device, nil
}

// keepContributions copies the contributions of a record, with the names of their CDI devices.
func (p *plan) keepContributions(old *record.Record) error {
	p.record.Decisions = old.Decisions
	for i := range old.Steps {
		if old.Steps[i].Kind != cdi.StepKind {
			addStep(p.record, old.Steps[i].Step)
		}
	}
	for i := range old.Devices {
		before := old.Devices[i].Added
		if before == nil {
			continue
		}
		if err := p.addEdits(&p.record.Devices[i], *before); err != nil {
			return fmt.Errorf("request %s: %w", old.Devices[i].Request, err)
		}
	}
	return nil
}

// additions are the mounts and the variables that the devices and the features give to a claim, to be compared.
type additions struct {
	mounts    []conflict.Mount
	variables []conflict.Variable
}

// add adds what a giver's edits mount and set. A name in givers, by the path or the variable, is said instead of the giver's.
func (a *additions) add(feature, giver string, givers map[string]string, edits *container.Edits) {
	for _, m := range edits.Mounts {
		a.mounts = append(a.mounts, conflict.Mount{Mount: m, Feature: feature, Giver: cmp.Or(givers[m.ContainerPath], giver)})
	}
	for _, text := range edits.Env {
		name, value, _ := strings.Cut(text, "=")
		a.variables = append(a.variables, conflict.Variable{Name: name, Value: value, Feature: feature, Giver: cmp.Or(givers[name], giver)})
	}
}

func (a *additions) addDevices(r *record.Record) {
	for i := range r.Devices {
		a.add("", "device "+r.Devices[i].Name, nil, &r.Devices[i].Edits)
	}
}

func (a *additions) addFeature(feature string, edits map[string]Edits) {
	for request, added := range edits {
		giver := "the feature " + feature + " for request " + request
		a.add(feature, giver, added.Givers, &added.Shared)
		a.add(feature, giver, added.Givers, &added.Own)
	}
}

// conflicts returns an error for each two of them that exclude each other.
func (a *additions) conflicts() error {
	return errors.Join(conflict.Mounts(a.mounts), conflict.Variables(a.variables))
}

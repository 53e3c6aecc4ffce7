// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
)

// presets adds what presets give. Within a boot that is decided once: a preset that was changed since is the next claim's affair. In a
// later boot the decision still holds, and the files of the host that it means are looked up anew.
func (e *Engine) presets(ctx context.Context, p *plan, in asked, old *record.Record) error {
	r := p.record
	if old != nil && old.BootID == e.BootID {
		return e.keepPresets(p, old)
	}
	if e.Presets == nil {
		return nil
	}
	given, err := e.Presets(ctx, in.claim, in.allocation, in.siblings, givenBefore(old))
	if err != nil {
		return err
	}
	for i := range r.Devices {
		base := resourceclaim.BaseRequestRef(r.Devices[i].Request)
		add, ok := given[base]
		if !ok {
			continue
		}
		delete(given, base) // its other devices would only repeat it
		if err := p.give(&r.Devices[i], &record.Preset{Edits: add.Edits, Own: add.Own, Given: add.Given}); err != nil {
			return fmt.Errorf("presets for request %s: %w", base, err)
		}
		p.steps = append(p.steps, add.Steps...)
	}
	if len(given) > 0 {
		return fmt.Errorf("presets were resolved for requests %v, of which the claim has no device", slices.Sorted(maps.Keys(given)))
	}
	return nil
}

// give adds a preset to a device. What other claims may have, too, is a spec of its own.
func (p *plan) give(d *record.Device, added *record.Preset) error {
	d.Preset = added
	if !added.Own.Empty() {
		p.own(added.Own, func(name string) { added.OwnDevice = name })
	}
	if added.Edits.Empty() {
		return nil
	}
	spec, err := cdi.Common(added.Edits)
	if err != nil {
		return err
	}
	added.CDIDevice = spec.Device
	p.specs = append(p.specs, spec)
	return nil
}

// givenBefore is what was decided in an earlier boot, nil where nothing was.
func givenBefore(old *record.Record) map[string]json.RawMessage {
	if old == nil {
		return nil
	}
	given := map[string]json.RawMessage{}
	for i := range old.Devices {
		if preset := old.Devices[i].Preset; preset != nil {
			given[resourceclaim.BaseRequestRef(old.Devices[i].Request)] = preset.Given
		}
	}
	return given
}

// keepPresets takes over what a record has. A spec that another version of Fettle wrote in its own way stays as long as it is there.
func (e *Engine) keepPresets(p *plan, old *record.Record) error {
	for i := range old.Devices {
		preset := old.Devices[i].Preset
		if preset == nil {
			continue
		}
		specs := len(p.specs)
		kept := &record.Preset{Edits: preset.Edits, Own: preset.Own, Given: preset.Given}
		if err := p.give(&p.record.Devices[i], kept); err != nil {
			return fmt.Errorf("presets for request %s: %w", old.Devices[i].Request, err)
		}
		if preset.CDIDevice != "" && kept.CDIDevice != preset.CDIDevice && e.Specs.Has(preset.CDIDevice) {
			kept.CDIDevice, p.specs = preset.CDIDevice, p.specs[:specs]
		}
	}
	return nil
}

// promise is a CDI device that kubelet was told of, and what it means.
type promise struct {
	name  string
	edits *container.Edits
}

// shared are the CDI devices of a record that are in files of their own, which other claims may use, too.
func shared(r *record.Record) []promise {
	var out []promise
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.CDIDevice != "" && !own(d.CDIDevice) {
			out = append(out, promise{d.CDIDevice, &d.Edits})
		}
		if d.Preset != nil && d.Preset.CDIDevice != "" {
			out = append(out, promise{d.Preset.CDIDevice, &d.Preset.Edits})
		}
	}
	return out
}

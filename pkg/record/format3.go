// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The names of the features that wrote decisions in format 3.
const (
	format3Presets      = "presets"
	format3KernelCaches = "kernelCaches"
)

// moveDecisions brings what format 3 kept beside a device to where it is kept now. It had one object for each request: a decision about
// presets, and the kernel caches in a member of it. Each of the two is now a feature's decision for the whole claim, by request.
func (r *Record) moveDecisions() error {
	presets, caches := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for i := range r.Devices {
		added := r.Devices[i].Added
		if added == nil || added.Given == nil {
			continue
		}
		var given map[string]json.RawMessage
		if err := json.Unmarshal(added.Given, &given); err != nil {
			return fmt.Errorf("decision about device %s: %w", r.Devices[i].Name, err)
		}
		added.Given = nil
		request := r.Devices[i].base()
		if uses, ok := given[format3KernelCaches]; ok {
			caches[request] = uses
			delete(given, format3KernelCaches)
		}
		if len(given) > 0 {
			rest, err := json.Marshal(given)
			if err != nil {
				return fmt.Errorf("decision about device %s: %w", r.Devices[i].Name, err)
			}
			presets[request] = rest
		}
	}
	if len(r.Decisions) > 0 {
		return nil // of format 4, which has them twice
	}
	return errors.Join(r.decide(format3Presets, presets), r.decide(format3KernelCaches, caches))
}

// withGiven is the record with its decisions also where format 3 has them, so that a plugin of the version before serves the claim in later
// boots, too.
func (r *Record) withGiven() (*Record, error) {
	if len(r.Decisions) == 0 {
		return r, nil
	}
	var presets map[string]map[string]json.RawMessage
	var caches map[string]json.RawMessage
	err := errors.Join(unmarshalIfAny(r.Decisions[format3Presets], &presets), unmarshalIfAny(r.Decisions[format3KernelCaches], &caches))
	if err != nil {
		return nil, fmt.Errorf("decisions about claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	out := r.Clone()
	out.Devices = slices.Clone(r.Devices)
	for i := range out.Devices {
		d := &out.Devices[i]
		if d.Added == nil {
			continue
		}
		given := map[string]json.RawMessage{}
		maps.Copy(given, presets[d.base()])
		if uses, ok := caches[d.base()]; ok {
			given[format3KernelCaches] = uses
		}
		added := *d.Added
		if added.Given, err = json.Marshal(given); err != nil {
			return nil, fmt.Errorf("decision about device %s: %w", d.Name, err)
		}
		d.Added = &added
	}
	return out, nil
}

// unmarshalIfAny decodes a decision, if there is one.
func unmarshalIfAny(decision json.RawMessage, into any) error {
	if decision == nil {
		return nil
	}
	return json.Unmarshal(decision, into)
}

// base is the device's request without its alternative.
func (d *Device) base() string {
	base, _, _ := strings.Cut(d.Request, "/")
	return base
}

// decide notes a feature's decision, by request.
func (r *Record) decide(feature string, byRequest map[string]json.RawMessage) error {
	if len(byRequest) == 0 {
		return nil
	}
	raw, err := json.Marshal(byRequest)
	if err != nil {
		return fmt.Errorf("decision of %s: %w", feature, err)
	}
	if r.Decisions == nil {
		r.Decisions = map[string]json.RawMessage{}
	}
	r.Decisions[feature] = raw
	return nil
}

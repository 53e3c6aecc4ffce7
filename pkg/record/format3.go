// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"fmt"
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
		request, _, _ := strings.Cut(r.Devices[i].Request, "/")
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
		added.Given = nil
	}
	return errors.Join(r.decide(format3Presets, presets), r.decide(format3KernelCaches, caches))
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

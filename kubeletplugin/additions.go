// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/caches"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
)

// additions is the engine's Presets: what presets give to a claim's requests, and the caches that it names.
func (p *Plugin) additions(
	ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, siblings []*resourceapi.ResourceClaim,
	given map[string]json.RawMessage,
) (map[string]engine.Preset, error) {
	uses, err := p.uses(ctx, c, a, given)
	gives, ofPresets := p.presets.decide(ctx, c, siblings, given)
	if err := errors.Join(ofPresets, err); err != nil {
		return nil, err
	}
	for request, list := range uses {
		if gives == nil {
			gives = map[string]engine.Preset{}
		}
		add := gives[request]
		for i := range list {
			s, err := list[i].Step()
			if err != nil {
				return nil, err
			}
			edits := p.caches.Edits(&list[i])
			add.Own.Env = append(add.Own.Env, edits.Env...)
			add.Own.Mounts = append(add.Own.Mounts, edits.Mounts...)
			add.Steps = append(add.Steps, s)
		}
		if add.Given, err = withUses(add.Given, list); err != nil {
			return nil, err
		}
		gives[request] = add
	}
	return gives, nil
}

// uses are the caches that a claim has, by request. What an earlier boot decided holds, whatever became of the objects since.
func (p *Plugin) uses(
	ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, given map[string]json.RawMessage,
) (map[string][]caches.Use, error) {
	if given != nil {
		out := map[string][]caches.Use{}
		for request, raw := range given {
			list, err := usesIn(raw)
			if err != nil {
				return nil, fmt.Errorf("caches of request %s, as recorded: %w", request, err)
			}
			if len(list) > 0 {
				out[request] = list
			}
		}
		return out, nil
	}
	machine := p.machine()
	return p.caches.Decide(ctx, c, a, func(r *claim.Result) (device.Device, bool) { return machine.Find(r.Kind, r.Device) })
}

// givenUses is the key of caches in what a record has as the decision about a request, beside that of presets.
const givenUses = "kernelCaches"

// withUses adds caches to a decision.
func withUses(given json.RawMessage, uses []caches.Use) (json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &all); err != nil {
			return nil, fmt.Errorf("add caches to a decision: %w", err)
		}
	}
	var err error
	if all[givenUses], err = json.Marshal(uses); err != nil {
		return nil, fmt.Errorf("encode what caches a claim has: %w", err)
	}
	return json.Marshal(all)
}

// usesIn are the caches of a decision.
func usesIn(given json.RawMessage) ([]caches.Use, error) {
	var all struct {
		Uses []caches.Use `json:"kernelCaches"`
	}
	if len(given) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(given, &all)
	return all.Uses, err
}

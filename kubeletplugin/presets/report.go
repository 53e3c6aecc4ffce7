// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// reportRefusals makes an Event of the contributions of presets that a claim may not have.
func (f *Feature) reportRefusals(c *resourceapi.ResourceClaim, resolution *preset.Resolution) {
	var notes []string
	for _, r := range resolution.Refusals {
		if r.Claim == c.Name {
			notes = append(notes, fmt.Sprintf("%s, %s: %s", r.From, r.Field, r.Message))
		}
	}
	f.sendEvent(c, corev1.EventTypeWarning, reasonRefused, notes)
}

// reportOverrides makes one Event of all that presets of a claim override of each other. files has, by request, what was found when files
// were looked up on the node.
func (f *Feature) reportOverrides(c *resourceapi.ResourceClaim, requests []preset.Request, files map[string][]string) {
	var notes []string
	for i := range requests {
		r := &requests[i]
		for j, override := range append(r.Overrides(), files[r.Request]...) {
			if j == 0 {
				override = "request " + r.Request + ": " + override
			}
			notes = append(notes, override)
		}
	}
	f.sendEvent(c, corev1.EventTypeNormal, reasonOverridden, notes)
}

// sendEvent makes one Event of all notes: Events that differ only in their text would be merged and keep the text of the first.
func (f *Feature) sendEvent(c *resourceapi.ResourceClaim, eventType, reason string, notes []string) {
	if len(notes) > 0 {
		explain := fmt.Sprintf("fettle preset explain -n %s claim/%s", c.Namespace, c.Name)
		f.Event(c, "", eventType, reason, joinNotes(notes, explain, message.MaxEventNote))
	}
}

// joinNotes joins as many notes as fit, and adds the number of the others and the command that lists them.
func joinNotes(notes []string, explain string, limit int) string {
	const separator = "; "
	out := ""
	for i, note := range notes {
		rest := fmt.Sprintf("%sand %d more: %s", separator, len(notes)-i-1, explain)
		if i == len(notes)-1 {
			rest = ""
		}
		if i > 0 {
			note = separator + note
		}
		if i > 0 && len(out)+len(note)+len(rest) > limit {
			return fmt.Sprintf("%s%sand %d more: %s", out, separator, len(notes)-i, explain)
		}
		out += note
	}
	return out
}

// The reasons of Events and of refused claims.
const (
	reasonUnmet      = "PresetUnmet"
	reasonRefused    = "PresetRefused"
	reasonOverridden = "PresetOverridden"
	reasonAmbiguous  = "PresetAmbiguous"
	reasonMissing    = "PresetMissing"
)

// Reason returns the stable reason of an error of this package, "" for any other.
func (f *Feature) Reason(err error) (reason string, permanent bool) {
	if errors.Is(err, errUnmet) || errors.Is(err, errUnread) {
		return reasonUnmet, false
	}
	return "", false
}

// Origins returns the presets that contribute to the requests of a claim, by the request without its alternative.
func (f *Feature) Origins(r *record.Record) (map[string][]preset.Origin, error) {
	decided, err := decodeDecision(r.Decisions[f.Name()])
	if err != nil {
		return nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	out := map[string][]preset.Origin{}
	for request := range decided {
		out[request] = decided[request].Presets
	}
	return out, nil
}

// NodeStatus counts the claims that each preset contributes to, in any generation. A decision that cannot be read counts for none.
func (f *Feature) NodeStatus(claims []*record.Record) []v1alpha1.NodePreset {
	var all [][]preset.Origin
	for _, r := range claims {
		origins, _ := f.Origins(r)
		all = append(all, slices.Concat(slices.Collect(maps.Values(origins))...))
	}
	return countPresets(all)
}

// countPresets counts the claims that each preset contributes to, in any generation.
func countPresets(claims [][]preset.Origin) []v1alpha1.NodePreset {
	counts := map[preset.Origin]int{}
	for _, origins := range claims {
		seen := map[preset.Origin]bool{}
		for _, o := range origins {
			o.Generation = 0
			if !seen[o] {
				counts[o]++
			}
			seen[o] = true
		}
	}
	var out []v1alpha1.NodePreset
	for o, n := range counts {
		out = append(out, v1alpha1.NodePreset{Namespace: o.Namespace, Name: o.Name, Claims: int32(min(n, math.MaxInt32))})
	}
	slices.SortFunc(out, func(a, b v1alpha1.NodePreset) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// decodeDecision returns the contributions of presets, by request.
func decodeDecision(decision json.RawMessage) (map[string]preset.Request, error) {
	if decision == nil {
		return nil, nil //nolint:nilnil // a claim without a decision has nothing of presets
	}
	var decided map[string]preset.Request
	if err := json.Unmarshal(decision, &decided); err != nil {
		return nil, fmt.Errorf("presets, as recorded: %w", err)
	}
	return decided, nil
}

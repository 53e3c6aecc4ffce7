// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// tellRefusals says on a claim what presets were meant to give it and do not.
func (f *Feature) tellRefusals(c *resourceapi.ResourceClaim, resolution *preset.Resolution) {
	var notes []string
	for _, r := range resolution.Refusals {
		if r.Claim == c.Name {
			notes = append(notes, fmt.Sprintf("%s, %s: %s", r.From, r.Field, r.Message))
		}
	}
	f.tellOnce(c, corev1.EventTypeWarning, reasonRefused, notes)
}

// tellOverrides says on a claim which presets lost what to which.
func (f *Feature) tellOverrides(c *resourceapi.ResourceClaim, resolution *preset.Resolution) {
	var notes []string
	for i := range resolution.Requests {
		r := &resolution.Requests[i]
		if r.Claim != c.Name {
			continue
		}
		for j, override := range r.Overrides() {
			if j == 0 {
				override = "request " + r.Request + ": " + override
			}
			notes = append(notes, override)
		}
	}
	f.tellOnce(c, corev1.EventTypeNormal, reasonOverridden, notes)
}

// tellOnce makes one Event of all notes: several that differ in their text alone would become one with the text of the first.
func (f *Feature) tellOnce(c *resourceapi.ResourceClaim, eventType, reason string, notes []string) {
	if len(notes) > 0 {
		explain := fmt.Sprintf("fettle preset explain -n %s claim/%s", c.Namespace, c.Name)
		f.Event(c, eventType, reason, listed(notes, explain, message.MaxEventNote))
	}
}

// listed joins as many notes as fit, and says how many more there are and what tells them.
func listed(notes []string, explain string, limit int) string {
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
)

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	if errors.Is(err, errUnmet) || errors.Is(err, errUnread) {
		return reasonUnmet
	}
	return ""
}

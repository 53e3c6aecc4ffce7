// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// claimWith is the record of a claim whose requests have something from presets, one list a request.
func claimWith(t *testing.T, uid string, requests ...[]preset.Origin) *record.Record {
	t.Helper()
	r := &record.Record{Namespace: "team-a", Name: uid, UID: uid, Phase: record.Prepared}
	decided := map[string]preset.Request{}
	for i, presets := range requests {
		name := fmt.Sprintf("r%d", i)
		decided[name] = preset.Request{Claim: uid, Request: name, Presets: presets}
		r.Devices = append(r.Devices,
			record.Device{Request: name, Pool: "p", Name: name + "a", CDIDevice: "a", Added: &record.Addition{CDIDevice: "b"}},
			record.Device{Request: name, Pool: "p", Name: name + "b", CDIDevice: "c"})
	}
	if len(decided) > 0 {
		decision, err := json.Marshal(decided)
		check.Must(t, err)
		r.Decisions = map[string]json.RawMessage{"presets": decision}
	}
	return r
}

// TestNodeStatus: a claim counts once for a preset, whatever its requests and the generations that they saw.
func TestNodeStatus(t *testing.T) {
	f := &Feature{}
	b := func(generation int64) preset.Origin { return preset.Origin{Name: "b", Generation: generation} }
	own := preset.Origin{Namespace: "team-a", Name: "a", Generation: 1}
	none, strange := claimWith(t, "u3"), claimWith(t, "u4", []preset.Origin{b(1)})
	strange.Decisions["presets"] = json.RawMessage(`"what?"`)
	got := f.NodeStatus([]*record.Record{
		claimWith(t, "u1", []preset.Origin{b(1), own}, []preset.Origin{b(1)}), claimWith(t, "u2", []preset.Origin{b(2)}), none, strange,
	})
	want := []v1alpha1.NodePreset{{Name: "b", Claims: 2}, {Namespace: "team-a", Name: "a", Claims: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if got := f.NodeStatus([]*record.Record{none}); got != nil {
		t.Errorf("without presets: %v", got)
	}
}

// TestOrigins: each request has the presets that it has something from.
func TestOrigins(t *testing.T) {
	f := &Feature{}
	a, b := preset.Origin{Name: "a", Generation: 1}, preset.Origin{Namespace: "team-a", Name: "b", Generation: 2}
	r := claimWith(t, "u1", []preset.Origin{a, b}, []preset.Origin{b})
	got, err := f.Origins(r)
	if diff := cmp.Diff(map[string][]preset.Origin{"r0": {a, b}, "r1": {b}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := f.Origins(claimWith(t, "u2")); err != nil || len(got) > 0 {
		t.Errorf("without presets: %v, %v", got, err)
	}
	r.Decisions["presets"] = json.RawMessage(`"what?"`)
	if got, err := f.Origins(r); err == nil {
		t.Errorf("of a decision that cannot be read: %v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// claimWith is the record of a claim whose requests have something from presets, one list a request.
func claimWith(t *testing.T, uid string, requests ...[]preset.Origin) *record.Record {
	t.Helper()
	r := &record.Record{Namespace: "team-a", Name: uid, UID: uid, Phase: record.Prepared}
	for i, presets := range requests {
		name := fmt.Sprintf("r%d", i)
		given, err := json.Marshal(preset.Request{Claim: uid, Request: name, Presets: presets})
		must(t, err)
		r.Devices = append(r.Devices,
			record.Device{Request: name, Pool: "p", Name: name + "a", CDIDevice: "a", Preset: &record.Preset{CDIDevice: "b", Given: given}},
			record.Device{Request: name, Pool: "p", Name: name + "b", CDIDevice: "c"})
	}
	return r
}

// TestPresetsOf: a claim counts once for a preset, whatever its requests and the generations that they saw.
func TestPresetsOf(t *testing.T) {
	dir := t.TempDir()
	store, err := record.Open(disk.OS{}, dir)
	must(t, err)
	p := &Plugin{store: store}
	b := func(generation int64) preset.Origin { return preset.Origin{Name: "b", Generation: generation} }
	own := preset.Origin{Namespace: "team-a", Name: "a", Generation: 1}
	must(t, store.Create(claimWith(t, "u1", []preset.Origin{b(1), own}, []preset.Origin{b(1)})))
	must(t, store.Create(claimWith(t, "u2", []preset.Origin{b(2)})))
	must(t, store.Create(claimWith(t, "u3")))
	strange := claimWith(t, "u4", []preset.Origin{b(1)})
	strange.Devices[0].Preset.Given = json.RawMessage(`"what?"`)
	must(t, store.Create(strange))
	must(t, os.WriteFile(filepath.Join(dir, "claims", "u5.json"), []byte("garbage"), 0o600))

	presetsOf := func(uids ...string) ([]v1alpha1.NodePreset, error) {
		all, err := p.addedTo(uids)
		if err != nil {
			return nil, err
		}
		return countPresets(all.presets), nil
	}
	got, err := presetsOf("u1", "u2", "u3", "u4", "u5", "gone")
	must(t, err)
	want := []v1alpha1.NodePreset{{Name: "b", Claims: 2}, {Namespace: "team-a", Name: "a", Claims: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if got, err := presetsOf("u3"); err != nil || got != nil {
		t.Errorf("without presets: %v, %v", got, err)
	}
}

// TestStatusListsPresets: as many as the API takes.
func TestStatusListsPresets(t *testing.T) {
	in := statusInput{view: viewOf(t, "empty"), now: time.Now()}
	for i := range v1alpha1.MaxNodePresets + 1 {
		in.presets = append(in.presets, v1alpha1.NodePreset{Name: fmt.Sprint(i), Claims: 1})
	}
	if diff := cmp.Diff(in.presets[:v1alpha1.MaxNodePresets], nodeStatus(in).Presets); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	in.presets = nil
	if got := nodeStatus(in).Presets; got != nil {
		t.Errorf("listed %v", got)
	}
}

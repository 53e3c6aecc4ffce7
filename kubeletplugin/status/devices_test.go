// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestShown: a claim shows what is in its regions, and nothing is written where it shows that already.
func TestShown(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	foreign := result("other", device.KindFPGA, "r0")
	foreign.Driver = "other.example"
	c := allocated("u1", result("gpu", device.KindGPU, "g0"), result("region", device.KindFPGA, "r0"), foreign)
	loaded := map[string]shown{poolName(testNode, device.KindFPGA) + "/r0": {Digest: "sha256:1", AFUID: "2"}}
	got, changed := withShown(c, loaded, now)
	if !changed || len(got.Status.Devices) != 1 {
		t.Fatalf("changed %v, entries %+v", changed, got.Status.Devices)
	}
	entry := got.Status.Devices[0]
	if diff := cmp.Diff(`{"digest":"sha256:1","afuID":"2"}`, string(entry.Data.Raw)); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	want := []metav1.Condition{{
		Type: "Programmed", Status: "True", Reason: "Programmed", LastTransitionTime: metav1.NewTime(now), Message: "the region holds sha256:1",
	}}
	if diff := cmp.Diff(want, entry.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if _, changed := withShown(got, loaded, now.Add(time.Hour)); changed {
		t.Error("written again")
	}
	loaded[poolName(testNode, device.KindFPGA)+"/r0"] = shown{Digest: "sha256:3"}
	if again, changed := withShown(got, loaded, now); !changed || string(again.Status.Devices[0].Data.Raw) != `{"digest":"sha256:3"}` {
		t.Errorf("changed %v: %s", changed, again.Status.Devices[0].Data.Raw)
	}
}

// TestShownPresets: a claim names the presets that each request has, on all of its devices, and what a region holds beside them.
func TestShownPresets(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := allocated("u1", result("both", device.KindGPU, "g0"), result("both", device.KindGPU, "g1"), result("other", device.KindGPU, "g2"))
	given, err := json.Marshal(preset.Request{Request: "both", Presets: []preset.Origin{
		{Name: "nvidia", Generation: 3}, {Namespace: "team-a", Name: "debug", Generation: 1},
	}})
	must(t, err)
	r := &record.Record{UID: "u1"}
	for _, result := range c.Status.Allocation.Devices.Results {
		r.Devices = append(r.Devices, record.Device{Request: result.Request, Pool: result.Pool, Name: result.Device})
	}
	r.Devices[0].Preset = &record.Preset{CDIDevice: "x", Given: given}
	devices, err := (&Plugin{}).shownOf(r)
	must(t, err)
	got, changed := withShown(c, devices, now)
	if !changed || len(got.Status.Devices) != 2 {
		t.Fatalf("changed %v, entries %+v", changed, got.Status.Devices)
	}
	for _, entry := range got.Status.Devices {
		const data = `{"presets":[{"name":"nvidia","generation":3},{"namespace":"team-a","name":"debug","generation":1}]}`
		if diff := cmp.Diff(data, string(entry.Data.Raw)); diff != "" {
			t.Errorf("data of %s (-want +got):\n%s", entry.Device, diff)
		}
		want := []metav1.Condition{{
			Type: "PresetsApplied", Status: "True", Reason: "Applied", LastTransitionTime: metav1.NewTime(now),
			Message: "ClusterDevicePreset nvidia (generation 3), DevicePreset team-a/debug (generation 1)",
		}}
		if diff := cmp.Diff(want, entry.Conditions); diff != "" {
			t.Errorf("conditions of %s (-want +got):\n%s", entry.Device, diff)
		}
	}
	if _, changed := withShown(got, devices, now.Add(time.Hour)); changed {
		t.Error("written again")
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestDevices: a claim shows what is in its regions, and nothing is written where it shows that already.
func TestDevices(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	foreign := nodefixture.Result("other", device.KindFPGA, "r0")
	foreign.Driver = "other.example"
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "g0"),
		nodefixture.Result("region", device.KindFPGA, "r0"), foreign)
	loaded := map[string]deviceStatus{device.PoolName(nodefixture.Node, device.KindFPGA) + "/r0": {Digest: "sha256:1", AFUID: "2"}}
	got, changed := withDevices(c, loaded, now)
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
	if _, changed := withDevices(got, loaded, now.Add(time.Hour)); changed {
		t.Error("written again")
	}
	loaded[device.PoolName(nodefixture.Node, device.KindFPGA)+"/r0"] = deviceStatus{Digest: "sha256:3"}
	if again, changed := withDevices(got, loaded, now); !changed || string(again.Status.Devices[0].Data.Raw) != `{"digest":"sha256:3"}` {
		t.Errorf("changed %v: %s", changed, again.Status.Devices[0].Data.Raw)
	}
}

// TestLongNamesOfPresets: what the API server takes at most is written, however long the names are.
func TestLongNamesOfPresets(t *testing.T) {
	var origins []preset.Origin
	for i := range 100 {
		origins = append(origins, preset.Origin{
			Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%03d%s", i, strings.Repeat("p", 250)), Generation: 1,
		})
	}
	w := NewClaimWriter(ClaimConfig{
		Programmed: func(*record.Record) (map[string]region.Programmed, error) { return map[string]region.Programmed{}, nil },
		Presets: func(*record.Record) (map[string][]preset.Origin, error) {
			return map[string][]preset.Origin{"gpu": origins}, nil
		},
	})
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "g0"))
	result := &c.Status.Allocation.Devices.Results[0]
	found, err := w.deviceStatuses(&record.Record{Devices: []record.Device{{Request: "gpu", Pool: result.Pool, Name: result.Device}}})
	check.Must(t, err)
	got, changed := withDevices(c, found, time.Unix(0, 0))
	if !changed {
		t.Fatal("nothing is written")
	}
	const most = 10 << 10 // AllocatedDeviceStatusDataMaxLength of Kubernetes
	if n := len(got.Status.Devices[0].Data.Raw); n > most || n < most/2 {
		t.Errorf("%d bytes of data, the API server takes %d", n, most)
	}
}

// TestDevicesPresets: a claim names the presets that each request has, on all of its devices, and what a region holds beside them.
func TestDevicesPresets(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := nodefixture.Allocated("u1", nodefixture.Result("both", device.KindGPU, "g0"),
		nodefixture.Result("both", device.KindGPU, "g1"), nodefixture.Result("other", device.KindGPU, "g2"))
	presets := map[string][]preset.Origin{"both": {
		{Name: "nvidia", Generation: 3}, {Namespace: "team-a", Name: "debug", Generation: 1},
	}}
	r := &record.Record{UID: "u1"}
	for _, result := range c.Status.Allocation.Devices.Results {
		r.Devices = append(r.Devices, record.Device{Request: result.Request, Pool: result.Pool, Name: result.Device})
	}
	w := NewClaimWriter(ClaimConfig{
		Presets: func(*record.Record) (map[string][]preset.Origin, error) { return presets, nil },
		Programmed: func(*record.Record) (map[string]region.Programmed, error) {
			return map[string]region.Programmed{}, nil
		},
	})
	devices, err := w.deviceStatuses(r)
	check.Must(t, err)
	got, changed := withDevices(c, devices, now)
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
	if _, changed := withDevices(got, devices, now.Add(time.Hour)); changed {
		t.Error("written again")
	}
}

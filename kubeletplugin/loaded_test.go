// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// TestShowLoaded: a claim shows what is in its regions, and nothing is written where it shows that already.
func TestShowLoaded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	foreign := result("other", device.KindFPGA, "r0")
	foreign.Driver = "other.example"
	c := allocated("u1", result("gpu", device.KindGPU, "g0"), result("region", device.KindFPGA, "r0"), foreign)
	loaded := map[string]loadedData{poolName(testNode, device.KindFPGA) + "/r0": {Digest: "sha256:1", AFUID: "2"}}
	got, changed := withLoaded(c, loaded, now)
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
	if _, changed := withLoaded(got, loaded, now.Add(time.Hour)); changed {
		t.Error("written again")
	}
	loaded[poolName(testNode, device.KindFPGA)+"/r0"] = loadedData{Digest: "sha256:3"}
	if again, changed := withLoaded(got, loaded, now); !changed || string(again.Status.Devices[0].Data.Raw) != `{"digest":"sha256:3"}` {
		t.Errorf("changed %v: %s", changed, again.Status.Devices[0].Data.Raw)
	}
}

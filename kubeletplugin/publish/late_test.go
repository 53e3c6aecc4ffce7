// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// regionOf is a region on a card.
func regionOf(name, card string) device.Device {
	return device.Device{
		Kind: device.KindFPGA, Name: name, Region: &fpga.Region{Card: card},
		Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + name, Major: 245, Permissions: "rw"}}},
	}
}

// TestTenantTaint: who may not join is kept away by a taint, beside that of a device's health; and where taints are dropped, by not
// publishing the region at all.
func TestTenantTaint(t *testing.T) {
	v := nodefixture.SnapshotWith(
		regionOf("r0", "0000:3b:00.0"), regionOf("r1", "0000:3b:00.0"), regionOf("r2", "0000:3b:00.0"), regionOf("other", "0000:5e:00.0"),
		nodefixture.GPU("gpu0", 0),
	)
	const team = "0b7c5d3e-8c1f-4a55-9a3b-1f6f0c9f5a11" // the UID of a namespace
	v.Tenants = map[string]string{"r1": team, "r2": team}
	taints := func(v *inventory.Snapshot) map[string][]resourceapi.DeviceTaint {
		out := map[string][]resourceapi.DeviceTaint{}
		for _, slice := range Resources(nodefixture.Node, v).Pools[nodefixture.Node+"/fpga"].Slices {
			for _, d := range slice.Devices {
				out[d.Name] = d.Taints
			}
		}
		return out
	}
	tenant := []resourceapi.DeviceTaint{{Key: "fettle.dev/tenant", Value: team, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	want := map[string][]resourceapi.DeviceTaint{"r0": nil, "r1": tenant, "r2": tenant, "other": nil}
	kept := v.With(inventory.Health{TaintsKept: true})
	if diff := cmp.Diff(want, taints(kept)); diff != "" || len(kept.Withheld) > 0 {
		t.Errorf("taints (-want +got), withheld %v:\n%s", kept.Withheld, diff)
	}
	v.Withheld["r2"] = "another reason"
	dropped := v.With(inventory.Health{})
	if diff := cmp.Diff(map[string][]resourceapi.DeviceTaint{"r0": nil, "other": nil}, taints(dropped)); diff != "" {
		t.Errorf("published where taints are dropped (-want +got):\n%s", diff)
	}
	if why := dropped.Withheld; len(why) != 2 || why["r2"] != "another reason" || !strings.Contains(why["r1"], "held by "+team) {
		t.Errorf("withheld %v", why)
	}
	if len(v.Withheld) != 1 {
		t.Error("the snapshot that was seen was changed")
	}
}

// TestHeldByDeleted: a device that a deleted claim holds has a taint without eviction, beside that of its health; and where taints are
// dropped, it is not published.
func TestHeldByDeleted(t *testing.T) {
	v := nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0), nodefixture.GPU("gpu1", 1))
	v.HeldByDeleted = map[string]bool{"gpu1": true}
	devices := func(v *inventory.Snapshot) []resourceapi.Device {
		return Resources(nodefixture.Node, v).Pools[nodefixture.Node+"/gpu"].Slices[0].Devices
	}
	held := resourceapi.DeviceTaint{Key: "fettle.dev/held", Value: "ClaimDeleted", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	kept := devices(v.With(inventory.Health{TaintsKept: true}))
	if len(kept) != 2 || len(kept[0].Taints) != 0 || !slices.Equal(kept[1].Taints, []resourceapi.DeviceTaint{held}) {
		t.Errorf("published %+v", kept)
	}
	bad := inventory.Health{TaintsKept: true, Statuses: map[string]health.Status{"gpu1": {State: health.Unhealthy, Reason: "Xid79"}}}
	if got := devices(v.With(bad))[1].Taints; len(got) != 2 || got[1] != held {
		t.Errorf("taints of a device that failed, too: %+v", got)
	}
	if dropped := devices(v.With(inventory.Health{})); len(dropped) != 1 || dropped[0].Name != "gpu0" {
		t.Errorf("published where taints are dropped: %+v", dropped)
	}
}

// TestLateDevices: pods are bound late only with devices for which that is asked.
func TestLateDevices(t *testing.T) {
	region := device.Device{Kind: device.KindFPGA, Name: "r0"}
	for _, late := range [][]device.Kind{nil, {device.KindFPGA}, {device.KindGPU}, {device.KindFPGA, device.KindGPU}} {
		v := nodefixture.SnapshotWith(nodefixture.GPU("g0", 0), region)
		v.BindLate = late
		for name, pool := range Resources(nodefixture.Node, v).Pools {
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					_, kind, _ := strings.Cut(name, "/")
					want := slices.Contains(late, device.Kind(kind))
					if got := len(d.BindingConditions) > 0 && len(d.BindingFailureConditions) > 0 && *d.BindsToNode; got != want {
						t.Errorf("late %v: %s of %s: %v, want %v", late, d.Name, name, got, want)
					}
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/nodefixture"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
)

// threeOnTwo are two regions of one card, one of another, and a GPU.
func threeOnTwo() []device.Device {
	return []device.Device{
		regionOf("r0", "0000:3b:00.0", shell), regionOf("r1", "0000:3b:00.0", shell), regionOf("r2", "0000:3b:00.0", shell),
		regionOf("other", "0000:5e:00.0", shell), nodefixture.GPU("gpu0", 0),
	}
}

// holding looks at a node on which claims hold devices.
func holding(t *testing.T, records ...*record.Record) *looker {
	t.Helper()
	l := newLooker(t, t.TempDir())
	for _, r := range records {
		nodefixture.Must(t, l.store.Create(r))
		nodefixture.Must(t, l.store.Acquire(r))
	}
	return l
}

// held is the record of a claim of a namespace that holds regions under a rule. An empty rule is that of a plugin that knew none.
func held(namespace, uid, rule string, names ...string) *record.Record {
	r := &record.Record{Namespace: namespace, Name: "claim-" + uid, UID: uid, Phase: record.Prepared, BootID: testBoot}
	for _, name := range names {
		r.Devices = append(r.Devices, record.Device{Request: name, Pool: nodefixture.Node + "/fpga", Name: name, CoTenancy: rule})
	}
	return r
}

// TestTenants: while a chip is held, its free regions are for those who may join; the others of the node are for everybody.
func TestTenants(t *testing.T) {
	mixed := held("team-a", "u1", "SameNamespace", "r0", "r1")
	mixed.Devices[0].CoTenancy = "Exclusive"
	swapped := held("team-a", "u1", "Exclusive", "r0", "r1")
	swapped.Devices[0].CoTenancy = "SameNamespace"
	admin := held("team-b", "look", "Exclusive", "r0")
	admin.Devices[0].AdminAccess = true
	for _, tc := range []struct {
		name    string
		records []*record.Record
		want    map[string]string
	}{
		{"nobody", nil, map[string]string{}},
		{"a namespace", []*record.Record{held("team-a", "u1", "SameNamespace", "r0")}, map[string]string{"r1": "team-a", "r2": "team-a"}},
		{"one claim", []*record.Record{held("team-a", "u1", "Exclusive", "r1")}, map[string]string{"r0": "u1", "r2": "u1"}},
		{"everybody", []*record.Record{held("team-a", "u1", "Shared", "r0")}, map[string]string{}},
		{"a record of a plugin that knew no rule", []*record.Record{held("team-a", "u1", "", "r0")}, map[string]string{"r1": "u1", "r2": "u1"}},
		{
			"two of a namespace",
			[]*record.Record{held("team-a", "u1", "SameNamespace", "r0"), held("team-a", "u2", "SameNamespace", "r2")},
			map[string]string{"r1": "team-a"},
		},
		{
			"who shares, and who does not",
			[]*record.Record{held("team-a", "u1", "SameNamespace", "r0"), held("team-a", "u2", "Shared", "r1")},
			map[string]string{"r2": "team-a"},
		},
		{"a claim with two rules", []*record.Record{mixed}, map[string]string{"r2": "u1"}},
		{"in either order", []*record.Record{swapped}, map[string]string{"r2": "u1"}},
		{"a card of its own", []*record.Record{held("team-a", "u1", "Exclusive", "other")}, map[string]string{}},
		{"all of a card", []*record.Record{held("team-a", "u1", "Exclusive", "r0", "r1", "r2")}, map[string]string{}},
		{"a look", []*record.Record{admin}, map[string]string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, holding(t, tc.records...).tenantsOf(threeOnTwo())); diff != "" {
				t.Errorf("tenants (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTenantOfDamagedRecord: a claim whose record cannot be read counts as the strictest, as it does when another wants to join.
func TestTenantOfDamagedRecord(t *testing.T) {
	l := holding(t)
	state := filepath.Join(t.TempDir(), "state")
	store, err := record.Open(disk.OS{}, state)
	nodefixture.Must(t, err)
	l.store = store
	r := held("team-a", "u1", "Shared", "r0")
	nodefixture.Must(t, store.Create(r))
	nodefixture.Must(t, store.Acquire(r))
	nodefixture.Must(t, os.WriteFile(filepath.Join(state, "claims", "u1.json"), []byte("{"), 0o600))
	if diff := cmp.Diff(map[string]string{"r1": "u1", "r2": "u1"}, l.tenantsOf(threeOnTwo())); diff != "" {
		t.Errorf("tenants (-want +got):\n%s", diff)
	}
}

// TestTenantTaint: who may not join is kept away by a taint, beside that of a device's health; and where taints are dropped, by not
// publishing the region at all.
func TestTenantTaint(t *testing.T) {
	v := nodefixture.SnapshotWith(threeOnTwo()...)
	v.tenants = map[string]string{"r1": "team-a", "r2": "team-a"}
	taints := func(v *view) map[string][]resourceapi.DeviceTaint {
		out := map[string][]resourceapi.DeviceTaint{}
		for _, slice := range resources(nodefixture.Node, v).Pools[nodefixture.Node+"/fpga"].Slices {
			for _, d := range slice.Devices {
				out[d.Name] = d.Taints
			}
		}
		return out
	}
	tenant := []resourceapi.DeviceTaint{{Key: "fettle.dev/tenant", Value: "team-a", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	want := map[string][]resourceapi.DeviceTaint{"r0": nil, "r1": tenant, "r2": tenant, "other": nil}
	kept := v.with(verdicts{taintsKept: true})
	if diff := cmp.Diff(want, taints(kept)); diff != "" || len(kept.withheld) > 0 {
		t.Errorf("taints (-want +got), withheld %v:\n%s", kept.withheld, diff)
	}
	v.withheld["r2"] = "another reason"
	dropped := v.with(verdicts{})
	if diff := cmp.Diff(map[string][]resourceapi.DeviceTaint{"r0": nil, "other": nil}, taints(dropped)); diff != "" {
		t.Errorf("published where taints are dropped (-want +got):\n%s", diff)
	}
	if why := dropped.withheld; len(why) != 2 || why["r2"] != "another reason" || !strings.Contains(why["r1"], "held by team-a") {
		t.Errorf("withheld %v", why)
	}
	if len(v.withheld) != 1 {
		t.Error("the view that was seen was changed")
	}
}

// TestContentsOfRegions: a region says which bytes it is known to hold, and nothing where that is not certain. One of which nobody knows
// what it holds is kept back, unless its claim is still there to put it right.
func TestContentsOfRegions(t *testing.T) {
	now := newLab(t, twoRegions()...)
	now.put(now.object("team-a", "nlb3", now.image("team/nlb3", shell, nlb3)))
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`)
	steps, err := now.plan(c)
	nodefixture.Must(t, err)
	nodefixture.Must(t, now.run(steps))
	seen := func(l *looker, afu string) *view {
		devices := twoRegions()
		for i := range devices {
			devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{device.AttributeAFUID: {StringValue: &afu}}
		}
		if afu == "" {
			devices[0].Attributes, devices[1].Attributes = nil, nil
		}
		v := nodefixture.SnapshotWith(devices...)
		l.contents = now.contents
		l.addContents(v)
		return v
	}
	digest := func(v *view, i int) string {
		if a, ok := v.devices[i].Attributes[device.AttributeBitstreamDigest]; ok {
			return *a.StringValue
		}
		return ""
	}
	l := holding(t)
	l.bootID = testBoot
	want := strings.TrimPrefix(digestOf(fpgaregistry.GBS(shell, nlb3)), "sha256:")
	if v := seen(l, nlb3); digest(v, 0) != want || digest(v, 1) != "" || len(v.withheld) > 0 {
		t.Errorf("digests %q and %q, want %q and none; withheld %v", digest(v, 0), digest(v, 1), want, v.withheld)
	}
	for name, v := range map[string]*view{
		"another accelerator": seen(l, nlb0), "no accelerator": seen(l, ""), "another boot": seen(holding(t), nlb3),
	} {
		if digest(v, 0) != "" || len(v.withheld) > 0 {
			t.Errorf("%s: digest %q, withheld %v", name, digest(v, 0), v.withheld)
		}
	}

	now.breakRegion(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"},"program":"Always"`))
	now.forget("r1")
	v := seen(l, nlb3)
	if len(v.withheld) != 2 || !strings.Contains(v.withheld["r0"], "for claim u1 failed or was cut off") || digest(v, 0) != "" {
		t.Errorf("withheld %v, digest %q", v.withheld, digest(v, 0))
	}
	for _, p := range v.problems {
		if p.Reason != discover.ReasonRegionUnknown {
			t.Errorf("problem %+v", p)
		}
	}
	busy := held("team-a", "u1", "SameNamespace", "r0")
	busy.Phase = record.Intended
	if v := seen(holding(t, busy), nlb3); v.withheld["r0"] != "" {
		t.Errorf("withheld from its own claim: %v", v.withheld)
	}
	leaving := held("team-a", "u1", "SameNamespace", "r0")
	leaving.Phase = record.Releasing
	if v := seen(holding(t, leaving), nlb3); v.withheld["r0"] == "" {
		t.Error("published although its claim is being given back")
	}
	nodefixture.Must(t, os.RemoveAll(filepath.Join(now.dir, regionsDir, "r1.json")))
	nodefixture.Must(t, os.Mkdir(filepath.Join(now.dir, regionsDir, "r1.json"), 0o700)) // which cannot be read
	if v := seen(l, nlb3); v.withheld["r1"] == "" {
		t.Error("published although what it holds cannot be read")
	}
}

// TestHoldsRegion: who takes or gives back a region has the taints of its siblings decided anew.
func TestHoldsRegion(t *testing.T) {
	plain := &record.Record{Devices: []record.Device{{Name: "gpu0"}}}
	if holdsRegion(plain) || !holdsRegion(held("team-a", "u1", "Shared", "r0")) {
		t.Error("a record does not tell whether it is of a region")
	}
}

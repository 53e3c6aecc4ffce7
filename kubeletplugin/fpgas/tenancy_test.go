// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/seed"
)

// threeOnTwo are two regions of one card, one of another, and a GPU.
func threeOnTwo() []device.Device {
	return []device.Device{
		regionOf("r0", "0000:3b:00.0", shell), regionOf("r1", "0000:3b:00.0", shell), regionOf("r2", "0000:3b:00.0", shell),
		regionOf("other", "0000:5e:00.0", shell), nodefixture.GPU("gpu0", 0),
	}
}

// holding is a node on which claims hold devices.
func holding(t *testing.T, records ...*record.Record) *Feature {
	t.Helper()
	f := newFeature(t, newSite(t), Config{StateDir: t.TempDir(), File: &nodeconfig.FPGA{Programming: true}})
	for _, r := range records {
		check.Must(t, f.Records.Create(r))
		check.Must(t, f.Records.Acquire(r))
	}
	return f
}

// held is the record of a claim of a namespace that holds regions under a rule. An empty rule is that of a plugin that knew none.
func held(namespace, uid, rule string, names ...string) *record.Record {
	r := &record.Record{
		Namespace: namespace, Name: "claim-" + uid, NamespaceUID: "uid-of-" + strings.TrimPrefix(namespace, "team-"), UID: uid,
		Phase: record.Prepared, BootID: testBoot,
	}
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
	unnamed := held("team-a", "u1", "SameNamespace", "r0")
	unnamed.NamespaceUID = ""
	for _, tc := range []struct {
		name    string
		records []*record.Record
		want    map[string]string
	}{
		{"a record of a plugin that noted the namespace's name only", []*record.Record{unnamed}, map[string]string{"r1": "u1", "r2": "u1"}},
		{"nobody", nil, map[string]string{}},
		{"a namespace", []*record.Record{held("team-a", "u1", "SameNamespace", "r0")}, map[string]string{"r1": "uid-of-a", "r2": "uid-of-a"}},
		{"one claim", []*record.Record{held("team-a", "u1", "Exclusive", "r1")}, map[string]string{"r0": "u1", "r2": "u1"}},
		{"everybody", []*record.Record{held("team-a", "u1", "Shared", "r0")}, map[string]string{}},
		{"a record of a plugin that knew no rule", []*record.Record{held("team-a", "u1", "", "r0")}, map[string]string{"r1": "u1", "r2": "u1"}},
		{
			"two of a namespace",
			[]*record.Record{held("team-a", "u1", "SameNamespace", "r0"), held("team-a", "u2", "SameNamespace", "r2")},
			map[string]string{"r1": "uid-of-a"},
		},
		{
			"who shares, and who does not",
			[]*record.Record{held("team-a", "u1", "SameNamespace", "r0"), held("team-a", "u2", "Shared", "r1")},
			map[string]string{"r2": "uid-of-a"},
		},
		{"a claim with two rules", []*record.Record{mixed}, map[string]string{"r2": "u1"}},
		{"in either order", []*record.Record{swapped}, map[string]string{"r2": "u1"}},
		{"a card of its own", []*record.Record{held("team-a", "u1", "Exclusive", "other")}, map[string]string{}},
		{"all of a card", []*record.Record{held("team-a", "u1", "Exclusive", "r0", "r1", "r2")}, map[string]string{}},
		{"a look", []*record.Record{admin}, map[string]string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, holding(t, tc.records...).tenantsOf(nodefixture.SnapshotWith(threeOnTwo()...))); diff != "" {
				t.Errorf("tenants (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTenantsHaveNoNames: whatever claims hold, what a node publishes of who may join names neither a namespace nor a claim.
func TestTenantsHaveNoNames(t *testing.T) {
	r := seed.New(t)
	rules := []string{"", "Exclusive", "SameNamespace", "Shared"}
	said := 0
	for range 30 {
		var records []*record.Record
		for i, name := range []string{"r0", "r1", "r2", "other"} {
			if r.IntN(2) == 0 {
				continue
			}
			one := held([]string{"team-a", "team-b"}[r.IntN(2)], fmt.Sprint("u", i), rules[r.IntN(len(rules))], name)
			if r.IntN(4) == 0 {
				one.NamespaceUID = ""
			}
			records = append(records, one)
		}
		for device, tenant := range holding(t, records...).tenantsOf(nodefixture.SnapshotWith(threeOnTwo()...)) {
			said++
			for _, one := range records {
				if strings.Contains(tenant, one.Namespace) || strings.Contains(tenant, one.Name) {
					t.Fatalf("%s says %q, which names claim %s/%s", device, tenant, one.Namespace, one.Name)
				}
			}
		}
	}
	if said == 0 {
		t.Error("nothing was published")
	}
}

// TestTenantOfDamagedRecord: a claim whose record cannot be read counts as the strictest, as it does when another wants to join.
func TestTenantOfDamagedRecord(t *testing.T) {
	f := holding(t)
	state := filepath.Join(t.TempDir(), "state")
	store, err := record.Open(disk.OS{}, state)
	check.Must(t, err)
	f.Records = store
	r := held("team-a", "u1", "Shared", "r0")
	check.Must(t, store.Create(r))
	check.Must(t, store.Acquire(r))
	check.Must(t, os.WriteFile(filepath.Join(state, "claims", "u1.json"), []byte("{"), 0o600))
	if diff := cmp.Diff(map[string]string{"r1": "u1", "r2": "u1"}, f.tenantsOf(nodefixture.SnapshotWith(threeOnTwo()...))); diff != "" {
		t.Errorf("tenants (-want +got):\n%s", diff)
	}
	// Made again to be released, while the machine did not list the region.
	check.Must(t, store.SetAside("u1"))
	again := &record.Record{UID: "u1", BootID: testBoot, Phase: record.Releasing}
	check.Must(t, store.Create(again))
	if diff := cmp.Diff(map[string]string{"r1": "u1", "r2": "u1"}, f.tenantsOf(nodefixture.SnapshotWith(threeOnTwo()...))); diff != "" {
		t.Errorf("tenants of a record that was made again (-want +got):\n%s", diff)
	}
	check.Must(t, store.ForgetDamaged("u1"))
	// A disk that does not answer.
	check.Must(t, os.Remove(filepath.Join(state, "claims", "u1.json")), os.Mkdir(filepath.Join(state, "claims", "u1.json"), 0o700))
	got := f.tenantsOf(nodefixture.SnapshotWith(threeOnTwo()...))
	if got["r1"] == "" || got["r2"] == "" || got["other"] != "" {
		t.Errorf("tenants %v, want the free regions of the chip of which nobody knows who holds it", got)
	}
}

// TestTenantsOfHiddenRegion: a claim has its chip while the driver does not show its region.
func TestTenantsOfHiddenRegion(t *testing.T) {
	f := holding(t, held("team-a", "u1", "Exclusive", "r1"))
	all := threeOnTwo()
	f.Review(t.Context(), nodefixture.SnapshotWith(all...))
	v := nodefixture.SnapshotWith(slices.Delete(all, 1, 2)...)
	f.Review(t.Context(), v)
	if diff := cmp.Diff(map[string]string{"r0": "u1", "r2": "u1"}, v.Tenants); diff != "" {
		t.Errorf("tenants (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"r0", "r1", "r2"}, v.RegionsOf("0000:3b:00.0")); diff != "" {
		t.Errorf("regions of the chip (-want +got):\n%s", diff)
	}
}

// TestContentsOfRegions: a region says which bytes it is known to hold, and nothing where that is not certain. One of which nobody knows
// what it holds is kept back, unless its claim is still there to put it right.
func TestContentsOfRegions(t *testing.T) {
	now := newLab(t, twoRegions()...)
	now.put(now.object("team-a", "nlb3", now.image("team/nlb3", shell, nlb3)))
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`)
	steps, err := now.plan(c)
	check.Must(t, err)
	check.Must(t, now.run(steps))
	seen := func(f *Feature, afu string) *inventory.Snapshot {
		devices := twoRegions()
		for i := range devices {
			devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{device.AttributeAFUID: {StringValue: &afu}}
		}
		if afu == "" {
			devices[0].Attributes, devices[1].Attributes = nil, nil
		}
		v := nodefixture.SnapshotWith(devices...)
		f.contents = now.contents
		f.Review(t.Context(), v)
		return v
	}
	digest := func(v *inventory.Snapshot, i int) string {
		if a, ok := v.Devices[i].Attributes[device.AttributeBitstreamDigest]; ok {
			return *a.StringValue
		}
		return ""
	}
	f := holding(t)
	rebooted := holding(t)
	rebooted.BootID = "boot-2"
	want := strings.TrimPrefix(digestOf(fpgaregistry.GBS(shell, nlb3)), "sha256:")
	if v := seen(f, nlb3); digest(v, 0) != want || digest(v, 1) != "" || len(v.Withheld) > 0 {
		t.Errorf("digests %q and %q, want %q and none; withheld %v", digest(v, 0), digest(v, 1), want, v.Withheld)
	}
	for name, v := range map[string]*inventory.Snapshot{
		"another accelerator": seen(f, nlb0), "no accelerator": seen(f, ""), "another boot": seen(rebooted, nlb3),
	} {
		if digest(v, 0) != "" || len(v.Withheld) > 0 {
			t.Errorf("%s: digest %q, withheld %v", name, digest(v, 0), v.Withheld)
		}
	}

	c = fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass)
	now.breakRegion(fpgaOwn(c, `"bitstream":{"name":"nlb3"},"program":"Always"`))
	now.forget("r1")
	v := seen(f, nlb3)
	if len(v.Withheld) != 2 || !strings.Contains(v.Withheld["r0"], "for claim u1 failed or was cut off") || digest(v, 0) != "" {
		t.Errorf("withheld %v, digest %q", v.Withheld, digest(v, 0))
	}
	for _, p := range v.Problems {
		if p.Reason != discover.ReasonRegionUnknown {
			t.Errorf("problem %+v", p)
		}
	}
	busy := held("team-a", "u1", "SameNamespace", "r0")
	busy.Phase = record.Intended
	if v := seen(holding(t, busy), nlb3); v.Withheld["r0"] != "" {
		t.Errorf("withheld from its own claim: %v", v.Withheld)
	}
	leaving := held("team-a", "u1", "SameNamespace", "r0")
	leaving.Phase = record.Releasing
	if v := seen(holding(t, leaving), nlb3); v.Withheld["r0"] == "" {
		t.Error("published although its claim is being given back")
	}
	check.Must(t, os.RemoveAll(filepath.Join(now.dir, regionsDir, "r1.json")))
	check.Must(t, os.Mkdir(filepath.Join(now.dir, regionsDir, "r1.json"), 0o700)) // which cannot be read
	if v := seen(f, nlb3); v.Withheld["r1"] == "" {
		t.Error("published although what it holds cannot be read")
	}
}

// TestProgrammedRegions: a claim is told what its regions are known to hold since its own Prepare, and nothing where that is not certain.
func TestProgrammedRegions(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`)
	steps, err := l.plan(c)
	check.Must(t, err)
	check.Must(t, l.run(steps))
	programmed := func(r *record.Record) map[string]region.Programmed {
		t.Helper()
		got, err := l.Programmed(r)
		check.Must(t, err)
		return got
	}
	mine := held("team-a", "u1", "Shared", "r0", "r1")
	mine.Devices = append(mine.Devices, record.Device{Request: "gpu", Pool: nodefixture.Node + "/gpu", Name: "gpu0"})
	want := map[string]region.Programmed{
		nodefixture.Node + "/fpga/r0": {Digest: digestOf(fpgaregistry.GBS(shell, nlb3)), AFUID: nlb3},
	}
	if diff := cmp.Diff(want, programmed(mine)); diff != "" {
		t.Errorf("programmed (-want +got):\n%s", diff)
	}
	look := held("team-a", "u1", "Shared", "r0")
	look.Devices[0].AdminAccess = true
	for name, r := range map[string]*record.Record{"another claim": held("team-a", "u2", "Shared", "r0"), "a look": look} {
		if got := programmed(r); len(got) > 0 {
			t.Errorf("%s: programmed %v", name, got)
		}
	}
	l.BootID = "boot-2"
	if got := programmed(mine); len(got) > 0 {
		t.Errorf("after a reboot: programmed %v", got)
	}
	l.BootID = testBoot
	l.breakRegion(fpgaOwn(c, `"bitstream":{"name":"nlb3"},"program":"Always"`))
	if got := programmed(mine); len(got) > 0 {
		t.Errorf("after a failure: programmed %v", got)
	}
	check.Must(t, os.RemoveAll(filepath.Join(l.dir, regionsDir, "r1.json")))
	check.Must(t, os.Mkdir(filepath.Join(l.dir, regionsDir, "r1.json"), 0o700)) // which cannot be read
	if got, err := l.Programmed(mine); err == nil {
		t.Errorf("programmed %v although that cannot be read", got)
	}
}

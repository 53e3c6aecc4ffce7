// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestResources holds what is published of machines, since a change of it renumbers pools on every node of every cluster.
func TestResources(t *testing.T) {
	for _, name := range []string{"8xh100-sxm", "4xlocalssd", "empty"} {
		t.Run(name, func(t *testing.T) { golden(t, "resources-"+name, resources(testNode, viewOf(t, name))) })
	}
}

// ailing is a machine's view with one device of each bad state, the first three GPUs.
func ailing(t *testing.T, taintsKept bool) *view {
	t.Helper()
	v := viewOf(t, "8xh100-sxm")
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return v.with(verdicts{taintsKept: taintsKept, statuses: map[string]health.Status{
		v.devices[0].Name: {Kind: device.KindGPU, State: health.Worn, Reason: "Xid94", Message: "xid 94: a contained memory error", Since: since},
		v.devices[1].Name: {Kind: device.KindGPU, State: health.Unhealthy, Reason: "Xid79", Message: "xid 79: off the bus", Since: since},
		v.devices[2].Name: {Kind: device.KindGPU, State: health.Quarantined, Reason: "UndoFailed", Message: "undoing failed", Since: since},
	}})
}

// TestUnhealthyResources: a device that is not healthy has a taint, or is not published at all where taints are dropped.
func TestUnhealthyResources(t *testing.T) {
	golden(t, "resources-unhealthy", resources(testNode, ailing(t, true)))
	withheld := resources(testNode, ailing(t, false))
	if devices := withheld.Pools[testNode+"/gpu"].Slices[0].Devices; len(devices) != 5 {
		t.Errorf("%d devices are published, want the 5 healthy ones", len(devices))
	}
	v := ailing(t, true)
	v.health.noEviction = true
	for _, d := range resources(testNode, v).Pools[testNode+"/gpu"].Slices[0].Devices {
		if len(d.Taints) > 0 && d.Taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule {
			t.Errorf("%s has taint %+v although nothing is to be evicted", d.Name, d.Taints[0])
		}
	}
}

func TestSlicesOfManyDevices(t *testing.T) {
	first, second := resources(testNode, viewOf(t, "200-devices")), resources(testNode, viewOf(t, "200-devices"))
	if !equality.Semantic.DeepEqual(first, second) {
		t.Error("two looks at one machine differ")
	}
	var counts []int
	names := map[string]bool{}
	for _, slice := range first.Pools[testNode+"/gpu"].Slices {
		counts = append(counts, len(slice.Devices))
		for _, d := range slice.Devices {
			names[d.Name] = true
		}
	}
	if diff := cmp.Diff([]int{64, 64, 64, 8}, counts); diff != "" {
		t.Errorf("devices a slice (-want +got):\n%s", diff)
	}
	if len(names) != 200 {
		t.Errorf("%d names", len(names))
	}
	if len(first.Pools) != 3 || len(first.Pools[testNode+"/fpga"].Slices) != 1 {
		t.Errorf("pools %+v: a pool without devices has one slice without devices", first.Pools)
	}
}

func newKeeper(t *testing.T) *specKeeper {
	t.Helper()
	store, err := record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	must(t, err)
	dir, err := cdi.Open(disk.OS{}, filepath.Join(t.TempDir(), "cdi"))
	must(t, err)
	k := &specKeeper{store: store, dir: dir, metrics: newMetrics()}
	k.engine = keeping(k, viewWith())
	return k
}

// keeping is an engine that sweeps for a keeper as the machine is seen.
func keeping(k *specKeeper, v *view) *engine.Engine {
	return engine.New(engine.Config{Node: testNode, Store: k.store, Specs: k.dir, Machine: func() engine.Machine { return v }})
}

// see is a look at the machine, and what follows from it.
func (k *specKeeper) see(t *testing.T, v *view) error {
	t.Helper()
	k.engine = keeping(k, v)
	return k.sync(t.Context(), v)
}

func deviceName(t *testing.T, v *view, i int) string {
	t.Helper()
	spec, err := cdi.Common(v.devices[i].Edits)
	must(t, err)
	return spec.Device
}

// TestSpecKeeper writes what is published and keeps what a claim was promised, also after the device left.
func TestSpecKeeper(t *testing.T) {
	k := newKeeper(t)
	v := viewWith(gpu("a", 1), gpu("b", 2))
	must(t, k.see(t, v))
	for i := range v.devices {
		if !k.dir.Has(deviceName(t, v, i)) {
			t.Errorf("device %s is published before its spec is there", v.devices[i].Name)
		}
	}
	promised := &record.Record{UID: "u1", Phase: record.Prepared, Devices: []record.Device{{CDIDevice: deviceName(t, v, 0)}}}
	must(t, k.store.Create(promised))
	must(t, k.see(t, viewWith()))
	if !k.dir.Has(deviceName(t, v, 0)) {
		t.Error("the spec of a prepared claim was removed")
	}
	if k.dir.Has(deviceName(t, v, 1)) {
		t.Error("a spec that nothing needs stayed")
	}
}

// TestUnreadableRecord hurts one claim, never the node.
func TestUnreadableRecord(t *testing.T) {
	k := newKeeper(t)
	old := viewWith(gpu("old", 1))
	must(t, k.see(t, old))
	state := filepath.Join(t.TempDir(), "state")
	store, err := record.Open(disk.OS{}, state)
	must(t, err)
	k.store = store
	must(t, os.WriteFile(filepath.Join(state, "claims", "u1.json"), []byte("{"), 0o600))
	v := viewWith(gpu("a", 1))
	if err := k.see(t, v); err != nil {
		t.Errorf("a broken record keeps the node from publishing: %v", err)
	}
	if !k.dir.Has(deviceName(t, v, 0)) {
		t.Error("the new device has no spec")
	}
	if !k.dir.Has(deviceName(t, old, 0)) {
		t.Error("a spec was removed although the broken record may name it")
	}
}

// TestUnusableDevice keeps back one device, never the others.
func TestUnusableDevice(t *testing.T) {
	bad := ssd("bad")
	bad.Edits.Mounts[0].HostPath = "/mnt/disks/\x7f"
	v := viewWith(gpu("a", 1), bad)
	withholdUnusable(v)
	if got := fmt.Sprint(v.withheld); !strings.Contains(got, "bad") || len(v.withheld) != 1 || len(v.problems) != 1 {
		t.Errorf("withheld %s, problems %v", got, v.problems)
	}
	must(t, newKeeper(t).see(t, v))
}

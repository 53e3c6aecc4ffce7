// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestResources holds what is published of machines, since a change of it renumbers pools on every node of every cluster.
func TestResources(t *testing.T) {
	for _, name := range []string{"8xh100-sxm", "4xlocalssd", "empty"} {
		t.Run(name, func(t *testing.T) {
			check.GoldenJSON(t, "testdata/resources-"+name+".golden.json", Resources(nodefixture.Node, nodefixture.Snapshot(t, name)))
		})
	}
}

// TestUnhealthyResources: a device that is not healthy has a taint, or is not published at all where taints are dropped.
func TestUnhealthyResources(t *testing.T) {
	check.GoldenJSON(t, "testdata/resources-unhealthy.golden.json", Resources(nodefixture.Node, nodefixture.Ailing(t, true)))
	withheld := Resources(nodefixture.Node, nodefixture.Ailing(t, false))
	if devices := withheld.Pools[nodefixture.Node+"/gpu"].Slices[0].Devices; len(devices) != 5 {
		t.Errorf("%d devices are published, want the 5 healthy ones", len(devices))
	}
	v := nodefixture.Ailing(t, true)
	v.Health.NoEviction = true
	for _, d := range Resources(nodefixture.Node, v).Pools[nodefixture.Node+"/gpu"].Slices[0].Devices {
		if len(d.Taints) > 0 && d.Taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule {
			t.Errorf("%s has taint %+v although nothing is to be evicted", d.Name, d.Taints[0])
		}
	}
}

func TestSlicesOfManyDevices(t *testing.T) {
	first := Resources(nodefixture.Node, nodefixture.Snapshot(t, "200-devices"))
	second := Resources(nodefixture.Node, nodefixture.Snapshot(t, "200-devices"))
	if !equality.Semantic.DeepEqual(first, second) {
		t.Error("two looks at one machine differ")
	}
	var counts []int
	names := map[string]bool{}
	for _, slice := range first.Pools[nodefixture.Node+"/gpu"].Slices {
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
}

// keeper keeps the specs of a machine, and sweeps for them as the machine was seen last.
type keeper struct {
	Publisher
	seen *inventory.Snapshot
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	store, err := record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	dir, err := cdi.Open(disk.OS{}, filepath.Join(t.TempDir(), "cdi"))
	check.Must(t, err)
	k := &keeper{seen: nodefixture.SnapshotWith()}
	k.Config = Config{
		Records: store, Specs: dir, Names: names(), Errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"source"}),
	}
	k.Sweep = func(ctx context.Context) error {
		return prepare.New(prepare.Config{
			Node: nodefixture.Node, Store: k.Records, Specs: k.Specs, Names: k.Names, Machine: func() prepare.Machine { return k.seen },
		}).SweepSpecs(ctx)
	}
	return k
}

// see is a look at the machine, and what follows from it.
func (k *keeper) see(t *testing.T, v *inventory.Snapshot) error {
	t.Helper()
	k.seen = v
	return k.syncSpecs(t.Context(), v)
}

func names() *cdi.Names { return cdi.NewNames([cdi.SecretSize]byte{1}) }

func deviceName(t *testing.T, v *inventory.Snapshot, i int) string {
	t.Helper()
	spec, err := names().Common(v.Devices[i].Edits)
	check.Must(t, err)
	return spec.Device
}

// TestSpecs writes what is published and keeps what a claim was promised, also after the device left.
func TestSpecs(t *testing.T) {
	k := newKeeper(t)
	v := nodefixture.SnapshotWith(nodefixture.GPU("a", 1), nodefixture.GPU("b", 2))
	check.Must(t, k.see(t, v))
	for i := range v.Devices {
		if !k.Specs.Has(deviceName(t, v, i)) {
			t.Errorf("device %s is published before its spec is there", v.Devices[i].Name)
		}
	}
	promised := &record.Record{UID: "u1", Phase: record.Prepared, Devices: []record.Device{{CDIDevice: deviceName(t, v, 0)}}}
	check.Must(t, k.Records.Create(promised))
	check.Must(t, k.see(t, nodefixture.SnapshotWith()))
	if !k.Specs.Has(deviceName(t, v, 0)) {
		t.Error("the spec of a prepared claim was removed")
	}
	if k.Specs.Has(deviceName(t, v, 1)) {
		t.Error("a spec that nothing needs stayed")
	}
}

// TestUnreadableRecord hurts one claim, never the node.
func TestUnreadableRecord(t *testing.T) {
	k := newKeeper(t)
	old := nodefixture.SnapshotWith(nodefixture.GPU("old", 1))
	check.Must(t, k.see(t, old))
	state := filepath.Join(t.TempDir(), "state")
	store, err := record.Open(disk.OS{}, state)
	check.Must(t, err)
	k.Records = store
	check.Must(t, os.WriteFile(filepath.Join(state, "claims", "u1.json"), []byte("{"), 0o600))
	v := nodefixture.SnapshotWith(nodefixture.GPU("a", 1))
	if err := k.see(t, v); err != nil {
		t.Errorf("a broken record keeps the node from publishing: %v", err)
	}
	if !k.Specs.Has(deviceName(t, v, 0)) {
		t.Error("the new device has no spec")
	}
	if !k.Specs.Has(deviceName(t, old, 0)) {
		t.Error("a spec was removed although the broken record may name it")
	}
}

// TestUnusableDevice: one device that no spec can describe keeps no other from being published.
func TestUnusableDevice(t *testing.T) {
	bad := nodefixture.SSD("bad")
	bad.Edits.Mounts[0].HostPath = "/mnt/disks/\x7f"
	v := nodefixture.SnapshotWith(nodefixture.GPU("a", 1), bad)
	v.Withheld["bad"] = "no container runtime could mount it"
	check.Must(t, newKeeper(t).see(t, v))
}

// TestAbsentDevice: a GPU that the machine does not show, since a virtual machine has it, stays published and keeps no other from it.
func TestAbsentDevice(t *testing.T) {
	absent := nodefixture.GPU("absent", 2)
	absent.Edits = container.Edits{}
	v := nodefixture.SnapshotWith(nodefixture.GPU("a", 1), absent)
	k := newKeeper(t)
	check.Must(t, k.see(t, v))
	if !k.Specs.Has(deviceName(t, v, 0)) {
		t.Error("the other GPU has no spec")
	}
}

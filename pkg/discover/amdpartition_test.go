// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

func divided(t *testing.T) string {
	t.Helper()
	return expand(t, parseMachine(t, "../../test/machines/2xmi300x-divided.txtar"))
}

func partitionsIn(t *testing.T, dir string, bus uint8) ([]AMDPartition, error) {
	t.Helper()
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	return AMDPartitions(tree, pci.Function{Address: pci.Address{Bus: bus}})
}

// TestAMDPartitions: each partition has its own render node and share, and the compute driver's node with all others.
func TestAMDPartitions(t *testing.T) {
	dir := divided(t)
	for bus, want := range map[uint8][]string{
		0x05: {
			"0 renderD128 28851 25767706624 38 gfx942 /dev/kfd 509:0 /dev/dri/renderD128 226:128",
			"1 renderD129 28852 25767706624 38 gfx942 /dev/kfd 509:0 /dev/dri/renderD129 226:129",
		},
		0x26: {
			"0 renderD136 51499 103070826496 152 gfx942 /dev/kfd 509:0 /dev/dri/renderD136 226:136",
			"1 renderD137 51500 103070826496 152 gfx942 /dev/kfd 509:0 /dev/dri/renderD137 226:137",
		},
	} {
		found, err := partitionsIn(t, dir, bus)
		check.Must(t, err)
		var got []string
		for _, p := range found {
			text := fmt.Sprintf("%d %s %d %d %d %s", p.Index, p.Render, p.GPUID, p.Memory, p.ComputeUnits, p.Architecture)
			for _, n := range p.Nodes {
				text += fmt.Sprintf(" %s %d:%d", n.Path, n.Major, n.Minor)
			}
			got = append(got, text)
		}
		if bus == 0x05 {
			if len(got) != 8 {
				t.Errorf("CPX has %d partitions, want 8", len(got))
			}
			got = got[:2]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("bus %x (-want +got):\n%s", bus, diff)
		}
	}
}

// TestPartitionsDiffer: a mode that the topology does not fit, in either direction, is never half a list. Elsewhere DPX showed 8 partitions
// of 16 (rocm#20, rocm#21).
func TestPartitionsDiffer(t *testing.T) {
	dir := divided(t)
	gpu := filepath.Join(dir, "sys/bus/pci/devices/0000:26:00.0")
	for _, mode := range []string{"SPX", "TPX", "QPX", "UNKNOWN", ""} {
		check.Must(t, os.WriteFile(filepath.Join(gpu, "current_compute_partition"), []byte(mode+"\n"), 0o644))
		if found, err := partitionsIn(t, dir, 0x26); !errors.Is(err, ErrPartitionsDiffer) {
			t.Errorf("mode %q: %d partitions, %v", mode, len(found), err)
		}
	}
	check.Must(t, os.WriteFile(filepath.Join(gpu, "current_compute_partition"), []byte("DPX\n"), 0o644))
	check.Must(t, os.RemoveAll(filepath.Join(dir, "sys/class/drm/renderD137")))
	if _, err := partitionsIn(t, dir, 0x26); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "renderD137") {
		t.Errorf("without a render node: %v", err)
	}
}

// TestPartitionAt: both forms of location_id, and that of another GPU.
func TestPartitionAt(t *testing.T) {
	at := pci.Address{Bus: 5}
	for location, want := range map[uint64]int{
		1280: 0, 1281: 1, 1287: 7, 1280 | 1<<28: 1, 1280 | 7<<28: 7, 1280 | 15<<28: 15, 1288: -1, 1024: -1,
	} {
		got, ok := partitionAt(map[string]uint64{"location_id": location}, at)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("location_id %#x: %d, want %d", location, got, want)
		}
	}
	if _, ok := partitionAt(map[string]uint64{"location_id": 1280, "domain": 1}, at); ok {
		t.Error("a GPU of another domain counts")
	}
}

// TestHalfATopology: while the compute driver does not show all of a GPU's partitions, nobody counts by it how many dies the GPU has: a
// claim's partition would be one that cannot be.
func TestHalfATopology(t *testing.T) {
	dir := divided(t)
	const name = "amd-0000-05-00-0"
	names := func() []string {
		for _, p := range discoverIn(t, dir, Options{}).Physical {
			if p.Device.Name == name {
				return partition.Names(partition.Physical{Device: p.Device, AMD: p.AMD})
			}
		}
		return nil
	}
	want := names()
	if !slices.Contains(want, name+"-cpx-nps1-p7") {
		t.Fatalf("names %v", want)
	}
	node := filepath.Join(dir, "sys/devices/virtual/kfd/kfd/topology/nodes/9")
	for _, harm := range []func() error{
		func() error { return os.WriteFile(filepath.Join(node, "properties"), []byte("garbage\n"), 0o644) },
		func() error { return os.RemoveAll(node) },
	} {
		check.Must(t, harm())
		if diff := cmp.Diff(want, names()); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	}
}

// TestUnreadableMode: a GPU of which the mode cannot be read, as while it is reset, or does not fit the topology, is not published as a
// whole.
func TestUnreadableMode(t *testing.T) {
	dir := divided(t)
	file := filepath.Join(dir, "sys/bus/pci/devices/0000:26:00.0/current_compute_partition")
	for _, harm := range []func() error{
		func() error { return os.Mkdir(file, 0o755) }, func() error { return nil },
		func() error { return os.WriteFile(file, []byte("SPX\n"), 0o644) },
	} {
		check.Must(t, os.RemoveAll(file))
		check.Must(t, harm())
		if got := discoverIn(t, dir, Options{}); len(got.Devices) > 0 {
			t.Errorf("devices %v", summary(got))
		}
	}
}

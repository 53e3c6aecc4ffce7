// SPDX-License-Identifier: Apache-2.0

// Package nodefixture has what tests of the kubelet plugin's packages share: simulated machines, devices and snapshots of them, and claims
// that have devices allocated.
package nodefixture

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// Node is the name of the Node object.
const Node = "node-1"

// Expand writes a machine of test/machines into a directory of its own.
func Expand(t testing.TB, machine string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), machine)
	ExpandInto(t, machine, dir)
	return dir
}

// ExpandInto writes a machine of test/machines into a directory.
func ExpandInto(t testing.TB, machine, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(machines(t), machine+".txtar"))
	check.Must(t, err)
	parsed, err := sim.Parse(text)
	check.Must(t, err)
	_, err = parsed.Expand(dir, sim.Options{})
	check.Must(t, err)
}

// machines finds test/machines above the directory of the package that is tested, also where files carry no paths (-trimpath).
func machines(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	check.Must(t, err)
	for {
		found := filepath.Join(dir, "test", "machines")
		if info, err := os.Stat(found); err == nil && info.IsDir() {
			return found
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("test/machines is not in any directory above this one")
		}
		dir = parent
	}
}

// LocalSSD publishes the directories below /mnt/disks.
func LocalSSD() []discover.HostDevice {
	return []discover.HostDevice{{Name: "localssd", Directories: []string{"/mnt/disks/*"}}}
}

// Snapshot is what the plugin would see of a machine, with disks of one size.
func Snapshot(t testing.TB, machine string) *inventory.Snapshot {
	t.Helper()
	return SnapshotOf(t, Expand(t, machine))
}

// SnapshotOf is the snapshot of a machine that was expanded into a directory.
func SnapshotOf(t testing.TB, root string) *inventory.Snapshot {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	defer tree.Close()
	found := discover.Discover(t.Context(), tree, discover.Options{
		HostDevices: LocalSSD(), Capacity: func(string) (int64, error) { return 1 << 40, nil },
	})
	return &inventory.Snapshot{Devices: found.Devices, Problems: found.Problems, Withheld: map[string]string{}}
}

// SnapshotWith is a snapshot of a machine with some devices.
func SnapshotWith(devices ...device.Device) *inventory.Snapshot {
	return &inventory.Snapshot{Devices: devices, Withheld: map[string]string{}}
}

// GPU is a device of the shape that discovery makes.
func GPU(name string, minor int64) device.Device {
	return device.Device{Kind: device.KindGPU, Name: name, Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/" + name, Major: 195, Minor: minor, Permissions: "rw"}},
	}}
}

// SSD is a host directory at /mnt/disks/NAME.
func SSD(name string) device.Device {
	return device.Device{Kind: device.KindHost, Name: name, Edits: container.Edits{
		Mounts: []container.Mount{{HostPath: "/mnt/disks/" + name, ContainerPath: "/mnt/localssd/" + name}},
	}}
}

// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/check"
)

// testNode is the name of the node. Package nodefixture has all this for other packages; it imports this one.
const testNode = "node-1"

func expand(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	expandInto(t, name, dir)
	return dir
}

func expandInto(t testing.TB, name, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "test", "machines", name+".txtar"))
	check.Must(t, err)
	machine, err := sim.Parse(text)
	check.Must(t, err)
	_, err = machine.Expand(dir, sim.Options{})
	check.Must(t, err)
}

func localSSD() []discover.HostDevice {
	return []discover.HostDevice{{Name: "localssd", Directories: []string{"/mnt/disks/*"}}}
}

func gpu(name string, minor int64) device.Device {
	return device.Device{Kind: device.KindGPU, Name: name, Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/" + name, Major: 195, Minor: minor, Permissions: "rw"}},
	}}
}

func ssd(name string) device.Device {
	return device.Device{Kind: device.KindHost, Name: name, Edits: container.Edits{
		Mounts: []container.Mount{{HostPath: "/mnt/disks/" + name, ContainerPath: "/mnt/localssd/" + name}},
	}}
}

func snapshotWith(devices ...device.Device) *Snapshot {
	return &Snapshot{Devices: devices, Withheld: map[string]string{}}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

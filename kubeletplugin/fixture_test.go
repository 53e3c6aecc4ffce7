// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

var update = flag.Bool("update", false, "write the golden files anew")

const testNode = "node-1"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expand writes a machine of test/machines into a directory of its own.
func expand(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	expandInto(t, name, dir)
	return dir
}

func expandInto(t testing.TB, name, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "test", "machines", name+".txtar"))
	must(t, err)
	machine, err := sim.Parse(text)
	must(t, err)
	_, err = machine.Expand(dir, sim.Options{})
	must(t, err)
}

// localSSD publishes the directories below /mnt/disks.
func localSSD() []discover.HostDevice {
	return []discover.HostDevice{{Name: "localssd", Directories: []string{"/mnt/disks/*"}}}
}

// viewOf is what the plugin would see of a machine, with disks of one size.
func viewOf(t testing.TB, name string) *view {
	t.Helper()
	tree, err := sysfs.Open(expand(t, name))
	must(t, err)
	defer tree.Close()
	found := discover.Discover(t.Context(), tree, discover.Options{
		HostDevices: localSSD(), Capacity: func(string) (int64, error) { return 1 << 40, nil },
	})
	return &view{devices: found.Devices, problems: found.Problems, withheld: map[string]string{}}
}

// golden compares a value's JSON with a file of testdata.
func golden(t *testing.T, name string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	must(t, err)
	got = append(got, '\n')
	path := filepath.Join("testdata", name+".golden.json")
	if *update {
		must(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// gpu is a device of the shape that discovery makes.
func gpu(name string, minor int64) device.Device {
	return device.Device{Kind: device.KindGPU, Name: name, Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/" + name, Major: 195, Minor: minor, Permissions: "rw"}},
	}}
}

// ssd is a host directory at /mnt/disks/NAME.
func ssd(name string) device.Device {
	return device.Device{Kind: device.KindHost, Name: name, Edits: container.Edits{
		Mounts: []container.Mount{{HostPath: "/mnt/disks/" + name, ContainerPath: "/mnt/localssd/" + name}},
	}}
}

func viewWith(devices ...device.Device) *view {
	return &view{devices: devices, withheld: map[string]string{}}
}

type apiResult = resourceapi.DeviceRequestAllocationResult

func result(request string, kind device.Kind, name string) apiResult {
	return apiResult{Request: request, Driver: v1alpha1.DriverName, Pool: poolName(testNode, kind), Device: name}
}

func look(r apiResult) apiResult {
	r.AdminAccess = new(true)
	return r
}

// allocated is the claim team-a/claim-UID with an allocation.
func allocated(uid string, results ...apiResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: results},
		}},
	}
}

// configured adds an opaque configuration to an allocated claim.
func configured(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, parameters string) *resourceapi.ResourceClaim {
	devices := &c.Status.Allocation.Devices
	devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	})
	return c
}

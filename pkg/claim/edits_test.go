// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
)

// shareOf is a share with an amount of the device's memory.
func shareOf(r Result, memory string) Result {
	r.ShareID = new(types.UID("share-1"))
	r.Consumed = map[resourceapi.QualifiedName]resource.Quantity{device.CapacityMemory: resource.MustParse(memory)}
	return r
}

func TestEdits(t *testing.T) {
	disk := device.Device{Kind: device.KindHost, Name: "h0", Edits: container.Edits{
		Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/ssd"}},
	}}
	gpu := device.Device{Kind: device.KindGPU, Name: "g0", Edits: container.Edits{
		Nodes:  []container.Node{{Path: "/dev/dri/renderD128", Major: 226, Minor: 128, Permissions: "rw"}},
		Mounts: []container.Mount{{HostPath: "/usr/lib/x", ContainerPath: "/usr/lib/x"}},
	}}
	tty := device.Device{Kind: device.KindHost, Name: "h0", Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/ttyS0", Major: 4, Minor: 64, Permissions: "rw"}},
	}}
	port := device.Device{Kind: device.KindFPGA, Name: "f0", Edits: container.Edits{
		Nodes: []container.Node{{Path: "/dev/dfl-port.0", Major: 245, Minor: 0, Permissions: "rw"}},
	}}
	two := device.Device{Kind: device.KindHost, Name: "h0", Edits: container.Edits{Mounts: make([]container.Mount, 2)}}
	at := func(path string) Result {
		return hostResult("disk", "h0", Effective{
			Host:    &HostEffective{MountPath: path},
			Sources: map[string]Source{FieldMountPath: {Origin: OriginClaim, Index: 3}},
		})
	}
	admin := func(r Result) Result {
		r.AdminAccess = true
		return r
	}
	for _, tc := range []struct {
		name   string
		result Result
		dev    device.Device
		want   container.Edits
		reason Reason
	}{
		{name: "as they are", result: gpuResult("main", "main", "g0", plainGPU), dev: gpu, want: gpu.Edits},
		{
			name: "a share with memory", result: shareOf(gpuResult("main", "main", "gpu-0", plainGPU), "10Gi"),
			dev:  device.Device{Kind: device.KindGPU, Name: "gpu-0", Edits: container.Edits{Env: []string{"A=b"}}},
			want: container.Edits{Env: []string{"A=b", "FETTLE_MEMORY_GPU_0=10737418240"}},
		},
		{name: "a share without memory", result: shareOf(gpuResult("main", "main", "g0", plainGPU), "0"), dev: gpu, want: gpu.Edits},
		{name: "built-in path", result: at(""), dev: disk, want: disk.Edits},
		{name: "an FPGA as it is programmed", result: Result{Device: "f0", Kind: device.KindFPGA}, dev: port, want: port.Edits},
		{
			name: "own path", result: at("/data"), dev: disk,
			want: container.Edits{Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/data"}}},
		},
		{
			name: "a look at a GPU", result: admin(gpuResult("main", "main", "g0", plainGPU)), dev: gpu,
			want: container.Edits{
				Nodes:  []container.Node{{Path: "/dev/dri/renderD128", Major: 226, Minor: 128, Permissions: "r"}},
				Mounts: []container.Mount{{HostPath: "/usr/lib/x", ContainerPath: "/usr/lib/x", ReadOnly: true}},
			},
		},
		{
			name: "a look at an FPGA", result: admin(Result{Device: "fpga-0", Kind: device.KindFPGA}),
			dev:  device.Device{Kind: device.KindFPGA, Name: "fpga-0", Edits: port.Edits},
			want: container.Edits{Env: []string{"FETTLE_NO_NODE_FPGA_0=admin-access"}},
		},
		{
			name: "a look at a disk", result: admin(at("/data")), dev: disk,
			want: container.Edits{Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/data", ReadOnly: true}}},
		},
		{name: "a path for a character device", result: at("/data"), dev: tty, reason: ReasonConfigInvalid},
		{name: "a path for two directories", result: at("/data"), dev: two, reason: ReasonConfigInvalid},
		{name: "another device", result: at(""), dev: gpu, reason: ReasonDeviceUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Edits(tc.result, tc.dev)
			var refused *RefusedError
			if errors.As(err, &refused) != (tc.reason != "") || (refused != nil && refused.Reason != tc.reason) {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong edits (-want +got):\n%s", diff)
			}
		})
	}
	if gpu.Edits.Nodes[0].Permissions != "rw" || gpu.Edits.Mounts[0].ReadOnly || disk.Edits.Mounts[0].ContainerPath != "/mnt/ssd" {
		t.Error("the device was changed")
	}
}

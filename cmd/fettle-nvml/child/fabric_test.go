// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// TestFabric: each state of the fabric is told, an error counts only once the GPU has been registered, and a cluster of zeros is none.
func TestFabric(t *testing.T) {
	cluster := [16]uint8{0xb5, 0x2c, 0x1a, 0x77, 0, 1, 0x40, 2, 0x80, 3, 4, 5, 6, 7, 8, 9}
	const uuid = "b52c1a77-0001-4002-8003-040506070809"
	for name, tc := range map[string]struct {
		info gonvml.GpuFabricInfo
		want *nvml.Fabric
		text string
	}{
		"none":        {gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_NOT_SUPPORTED, ClusterUuid: cluster, CliqueId: 1}, nil, ""},
		"later":       {gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_NOT_STARTED}, &nvml.Fabric{State: "notStarted"}, ""},
		"in progress": {gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_IN_PROGRESS, Status: 999}, &nvml.Fabric{State: "inProgress"}, ""},
		"failed": {
			gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(gonvml.ERROR_UNKNOWN), ClusterUuid: cluster},
			&nvml.Fabric{State: "failed"}, "",
		},
		"one machine": {gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: 7}, &nvml.Fabric{State: "completed"}, ""},
		"several": {
			gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: cluster, CliqueId: 4294967295},
			&nvml.Fabric{State: "completed", ClusterUUID: uuid, CliqueID: 4294967295}, uuid + ".4294967295",
		},
		"unknown": {gonvml.GpuFabricInfo{State: 200, ClusterUuid: cluster}, nil, ""},
	} {
		got := fabricOf(tc.info)
		if diff := cmp.Diff(tc.want, got); diff != "" || got.Clique() != tc.text {
			t.Errorf("%s: clique %q, want %q (-want +got)\n%s", name, got.Clique(), tc.text, diff)
		}
		report := nvml.Report{Devices: []nvml.Device{{PCIBusID: "0000:1b:00.0", Fabric: got}}}
		if err := report.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if settled := name != "later" && name != "in progress"; report.Settled() != settled {
			t.Errorf("%s: settled %t, want %t", name, report.Settled(), settled)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/objects"
)

func TestOfClaim(t *testing.T) {
	c := &resourceapi.ResourceClaim{}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{
		objects.Request("plain", gpu),
		{Name: "either", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "best", DeviceClassName: "h100.example.com"}, {Name: "next", DeviceClassName: fpga},
		}},
		objects.Request("net", "rdma.example.com"),
	}
	published := func(_, name string) *resourceapi.Device {
		if name == "gone" {
			return nil
		}
		return &resourceapi.Device{Attributes: device("", "", "name="+name).Attributes}
	}
	if got := preset.OfClaim(c, v1alpha1.DriverName, true, published); len(got.Devices)+len(got.Classes) > 0 {
		t.Errorf("a claim without devices has %+v", got)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "plain", Driver: v1alpha1.DriverName, Pool: "p", Device: "gpu-0"},
			{Request: "plain", Driver: v1alpha1.DriverName, Pool: "p", Device: "gone"},
			{Request: "either/next", Driver: v1alpha1.DriverName, Pool: "p", Device: "fpga-0"},
			{Request: "net", Driver: "rdma.example.com", Pool: "p", Device: "eth0"},
		},
	}}
	want := preset.Claim{ResourceClaim: c, Owned: true, Classes: []string{gpu, fpga, "rdma.example.com"}, Devices: []preset.Device{
		{Request: "plain", Class: gpu, Attributes: device("", "", "name=gpu-0").Attributes},
		{Request: "plain", Class: gpu},
		{Request: "either", Class: fpga, Attributes: device("", "", "name=fpga-0").Attributes},
	}}
	if diff := cmp.Diff(want, preset.OfClaim(c, v1alpha1.DriverName, true, published)); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
}

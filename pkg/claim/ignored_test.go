// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/test/objects"
)

const nvidiaMPS = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS",` +
	`"mpsConfig":{"defaultActiveThreadPercentage":50,"a":1,"b":2,"c":[]}}}`

func allocatedEntry(driver, parameters string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClaim, Requests: requests,
		DeviceConfiguration: objects.Opaque(driver, parameters),
	}
}

// TestIgnoredConfigs: a configuration that the driver of none of its devices reads is named with its driver and fields. One that some other
// driver may read is not, and neither is one among other drivers.
func TestIgnoredConfigs(t *testing.T) {
	c := &resourceapi.ResourceClaim{}
	if got := IgnoredConfigs(c, "fettle.dev"); got != nil {
		t.Errorf("of a claim without an allocation: %v", got)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "fettle.dev"},
			{Request: "gpu", Driver: "fettle.dev"},
			{Request: "any/small", Driver: "fettle.dev"},
			{Request: "nic", Driver: "dra.net"},
		},
		Config: []resourceapi.DeviceAllocationConfiguration{
			allocatedEntry("gpu.nvidia.com", nvidiaMPS, "gpu"),
			allocatedEntry("gpu.nvidia.com", `[]`, "any"),
			allocatedEntry("fettle.dev", `{}`, "gpu"),
			allocatedEntry("dra.net", `{}`),                     // for all, and one of them is its
			allocatedEntry("gpu.nvidia.com", `{}`, "nic"),       // between two others
			allocatedEntry("fettle.dev", `{"kind":"X"}`, "nic"), // ours, for another's device
			allocatedEntry("gpu.nvidia.com", `{}`, "absent"),
			{Source: resourceapi.AllocationConfigSourceClaim},
			allocatedEntry("gpu.amd.com", `{"apiVersion":"a/v1","kind":"GpuConfig"}`),
		},
	}}
	var got []string
	for _, i := range IgnoredConfigs(c, "fettle.dev") {
		got = append(got, i.Path.String()+": "+i.String())
	}
	const next = "remove the entry, or set what you need in a configuration for driver "
	want := []string{
		"status.allocation.devices.config[0]: the parameters for driver gpu.nvidia.com (GpuConfig: sharing.mpsConfig.a, sharing.mpsConfig.b, " +
			"sharing.mpsConfig.c, sharing.mpsConfig.defaultActiveThreadPercentage and 1 more) have no effect, because the devices of request gpu " +
			"are of driver fettle.dev: " + next + "fettle.dev",
		"status.allocation.devices.config[1]: the parameters for driver gpu.nvidia.com have no effect, because the devices of request " +
			"any/small are of driver fettle.dev: " + next + "fettle.dev",
		"status.allocation.devices.config[5]: the parameters for driver fettle.dev (X) have no effect, because the devices of request nic " +
			"are of driver dra.net: " + next + "dra.net",
		"status.allocation.devices.config[8]: the parameters for driver gpu.amd.com (GpuConfig) have no effect, because the devices of request " +
			"gpu, any/small, nic are of driver dra.net, fettle.dev: " + next + "dra.net, fettle.dev",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnknownDriver: while the driver of a request is unknown, nothing is said of its configurations.
func TestUnknownDriver(t *testing.T) {
	entry := allocatedEntry("gpu.nvidia.com", nvidiaMPS)
	entries := []Entry{{Opaque: entry.Opaque}}
	if got := IgnoredEntries(entries, []Recipient{{Request: "a", Driver: "fettle.dev"}, {Request: "b"}}); got != nil {
		t.Errorf("got %v", got)
	}
	if got := IgnoredEntries(entries, []Recipient{{Request: "a", Driver: "fettle.dev"}}); len(got) != 1 {
		t.Errorf("got %v, want one", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// TestUnrequested: an allocation that the spec does not ask for is refused, however it was written.
func TestUnrequested(t *testing.T) {
	honest := func() *resourceapi.ResourceClaim {
		return allocated([]apiResult{result("main", "gpu", "g0"), result("disk/big", "host", "h0")},
			class(onlyA, "main"), own(exclusive, "main"), own(atData, "disk"), own(atScratch, "disk/small"))
	}
	if _, err := Resolve(Input{Claim: honest(), Driver: driver, Node: node}); err != nil {
		t.Fatalf("the honest claim: %v", err)
	}
	for name, tc := range map[string]struct {
		forge func(*resourceapi.DeviceAllocationResult)
		want  string
	}{
		"request": {
			func(d *resourceapi.DeviceAllocationResult) { d.Results[0].Request = "more" },
			`results[0].request: Invalid value: "more": the claim's spec has no such request`,
		},
		"request of alternatives": {
			func(d *resourceapi.DeviceAllocationResult) { d.Results[1].Request = "disk" },
			`results[1].request: Invalid value: "disk": the claim's spec has no such request`,
		},
		"alternative": {
			func(d *resourceapi.DeviceAllocationResult) { d.Results[1].Request = "disk/huge" },
			`results[1].request: Invalid value: "disk/huge": the claim's spec has no such request`,
		},
		"alternative of a plain request": {
			func(d *resourceapi.DeviceAllocationResult) { d.Results[0].Request = "main/sub" },
			`results[0].request: Invalid value: "main/sub": the claim's spec has no such request`,
		},
		"two alternatives": {
			func(d *resourceapi.DeviceAllocationResult) {
				d.Results = append(d.Results, result("disk/small", "host", "h1"))
			},
			"request disk got its alternative disk/big already",
		},
		"admin access": {
			func(d *resourceapi.DeviceAllocationResult) { d.Results[0].AdminAccess = new(true) },
			"results[0].adminAccess: Invalid value: true: request main of the claim's spec does not ask for admin access",
		},
		"more devices": {
			func(d *resourceapi.DeviceAllocationResult) {
				d.Results = append(d.Results, result("main", "gpu", "g1"))
			},
			"request main of the claim's spec asks for 1 devices and this is number 2",
		},
		"configuration": {
			func(d *resourceapi.DeviceAllocationResult) { d.Config = append(d.Config, own(atScratch, "disk")) },
			"config[4]: Forbidden: spec.devices.config of the claim has no such entry for these requests",
		},
		"configuration for all requests": {
			func(d *resourceapi.DeviceAllocationResult) { d.Config = append(d.Config, own(exclusive)) },
			"config[4]: Forbidden: spec.devices.config of the claim has no such entry for these requests",
		},
		"configuration of the class for another request": {
			func(d *resourceapi.DeviceAllocationResult) { d.Config = append(d.Config, class(onlyB, "more")) },
			`config[4].requests[0]: Invalid value: "more": the claim's spec has no such request`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := honest()
			tc.forge(&c.Status.Allocation.Devices)
			_, err := Resolve(Input{Claim: c, Driver: driver, Node: node})
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok || refused.Reason != ReasonNotRequested || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s with %q", err, ReasonNotRequested, tc.want)
			}
		})
	}
}

// TestRequested: what schedulers make of a spec passes.
func TestRequested(t *testing.T) {
	for name, change := range map[string]func(c *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult){
		"no names of requests, for all": func(c *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult) {
			c.Spec.Devices.Config[0].Requests = []string{"main"}
			d.Config[0].Requests = nil
		},
		"other white space": func(_ *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult) {
			d.Config[0].Opaque.Parameters.Raw = []byte(strings.ReplaceAll(exclusive, ":", ": "))
		},
		"all devices": func(c *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult) {
			c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			c.Spec.Devices.Requests[0].Exactly.Count = 0
			d.Results = append(d.Results, result("main", "gpu", "g1"))
		},
		"admin access": func(c *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult) {
			c.Spec.Devices.Requests[0].Exactly.AdminAccess = new(true)
			d.Results[0].AdminAccess = new(true)
		},
		"no configuration": func(_ *resourceapi.ResourceClaim, d *resourceapi.DeviceAllocationResult) { d.Config = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := allocated([]apiResult{result("main", "gpu", "g0")}, own(exclusive, "main"))
			change(c, &c.Status.Allocation.Devices)
			if _, err := Resolve(Input{Claim: c, Driver: driver, Node: node}); err != nil {
				t.Error(err)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Asked gives an allocated claim a spec that asks for what its allocation has, of one class: the plugin refuses an allocation that the spec
// does not ask for.
func Asked(c *resourceapi.ResourceClaim, class string) {
	c.Spec = resourceapi.ResourceClaimSpec{}
	if c.Status.Allocation == nil {
		return
	}
	spec, devices := &c.Spec.Devices, &c.Status.Allocation.Devices
	for i := range devices.Results {
		ask(spec, &devices.Results[i], class)
	}
	for i := range devices.Config {
		for _, name := range devices.Config[i].Requests {
			offer(spec, name, class)
		}
		if devices.Config[i].Source == resourceapi.AllocationConfigSourceClaim {
			spec.Config = append(spec.Config, resourceapi.DeviceClaimConfiguration{
				Requests: devices.Config[i].Requests, DeviceConfiguration: devices.Config[i].DeviceConfiguration,
			})
		}
	}
}

// ask adds a result to the spec.
func ask(spec *resourceapi.DeviceClaim, r *resourceapi.DeviceRequestAllocationResult, class string) {
	if sub := offer(spec, r.Request, class); sub != nil {
		sub.Count++
		return
	}
	i := slices.IndexFunc(spec.Requests, func(known resourceapi.DeviceRequest) bool { return known.Name == r.Request })
	if i >= 0 {
		spec.Requests[i].Exactly.Count++
		return
	}
	spec.Requests = append(spec.Requests, resourceapi.DeviceRequest{Name: r.Request, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: r.AdminAccess,
	}})
}

// offer adds an alternative of a request unless the spec has it, and returns it. It returns nil for the name of a request.
func offer(spec *resourceapi.DeviceClaim, name, class string) *resourceapi.DeviceSubRequest {
	base := resourceclaim.BaseRequestRef(name)
	if base == name {
		return nil
	}
	i := slices.IndexFunc(spec.Requests, func(known resourceapi.DeviceRequest) bool { return known.Name == base })
	if i < 0 {
		i = len(spec.Requests)
		spec.Requests = append(spec.Requests, resourceapi.DeviceRequest{Name: base})
	}
	all := &spec.Requests[i].FirstAvailable
	j := slices.IndexFunc(*all, func(known resourceapi.DeviceSubRequest) bool { return known.Name == name[len(base)+1:] })
	if j < 0 {
		j = len(*all)
		*all = append(*all, resourceapi.DeviceSubRequest{
			Name: name[len(base)+1:], DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		})
	}
	return &(*all)[j]
}

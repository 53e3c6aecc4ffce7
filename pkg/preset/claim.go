// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// OfClaim converts an allocated claim. published finds a device of the driver as it is published now, or returns nil.
func OfClaim(c *resourceapi.ResourceClaim, driver string, owned bool, published func(pool, name string) *resourceapi.Device) Claim {
	out := Claim{ResourceClaim: c, Owned: owned}
	if c.Status.Allocation == nil {
		return out
	}
	classes := askedBy(c)
	for _, result := range c.Status.Allocation.Devices.Results {
		class := classes[result.Request]
		if class != "" && !slices.Contains(out.Classes, class) {
			out.Classes = append(out.Classes, class)
		}
		if result.Driver != driver {
			continue
		}
		d := Device{Request: resourceclaim.BaseRequestRef(result.Request), Class: class}
		if p := published(result.Pool, result.Device); p != nil {
			d.Attributes, d.Capacity = p.Attributes, p.Capacity
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}

// askedBy returns the class that each request asked for, by the whole name of an alternative.
func askedBy(c *resourceapi.ResourceClaim) map[string]string {
	classes := map[string]string{}
	for _, request := range c.Spec.Devices.Requests {
		if request.Exactly != nil {
			classes[request.Name] = request.Exactly.DeviceClassName
		}
		for _, alternative := range request.FirstAvailable {
			classes[request.Name+"/"+alternative.Name] = alternative.DeviceClassName
		}
	}
	return classes
}

// requests lists the requests of a claim that hold a device of the driver, sorted.
func (c *Claim) requests() []string {
	var out []string
	for i := range c.Devices {
		out = append(out, c.Devices[i].Request)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

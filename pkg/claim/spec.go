// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// The spec of a claim cannot change and was checked at admission. Its status can be written by whoever has the right to. So an allocation
// is believed only as far as the spec asks for what it has.

// request is a request of a claim's spec, or one alternative of it.
type request struct {
	class string
	admin bool
	// most is the number of devices that the request may get. 0: any number.
	most int64
	// path is that of the class's name.
	path *field.Path
}

// requestOf finds a request by the name that an allocation uses: "main", or "main/sub" for an alternative.
func requestOf(c *resourceapi.ResourceClaim, name string) (request, bool) {
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		path := field.NewPath("spec", "devices", "requests").Index(i)
		if exactly := r.Exactly; exactly != nil && r.Name == name {
			admin := exactly.AdminAccess != nil && *exactly.AdminAccess
			return request{
				exactly.DeviceClassName, admin, mostOf(exactly.AllocationMode, exactly.Count), path.Child("exactly", "deviceClassName"),
			}, true
		}
		for j := range r.FirstAvailable {
			if sub := &r.FirstAvailable[j]; name == resourceclaim.CreateSubRequestRef(r.Name, sub.Name) {
				return request{
					sub.DeviceClassName, false, mostOf(sub.AllocationMode, sub.Count),
					path.Child("firstAvailable").Index(j).Child("deviceClassName"),
				}, true
			}
		}
	}
	return request{}, false
}

// mostOf returns the number of devices of a request. The API server sets a count of 1 where a user set none.
func mostOf(mode resourceapi.DeviceAllocationMode, count int64) int64 {
	if mode == resourceapi.DeviceAllocationModeAll {
		return 0
	}
	return max(count, 1)
}

// hasRequest reports whether a configuration may name a request: one of the spec, an alternative, or the request of an alternative.
func hasRequest(c *resourceapi.ResourceClaim, name string) bool {
	_, ok := requestOf(c, name)
	return ok || slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool { return r.Name == name })
}

const reallocate = "delete the pod, so that the claim is allocated again; if that does not help, " +
	"an administrator should look at who may write resourceclaims/status"

// unrequested refuses what the allocation has and the claim's spec does not ask for: requests, devices, admin access, configurations.
func unrequested(in Input, results []ownResult) field.ErrorList {
	var faults field.ErrorList
	for i := range results {
		if fault := results[i].unrequested(in.Claim, results[:i]); fault != nil {
			faults = append(faults, fault)
		}
	}
	if len(results) == 0 {
		return nil
	}
	config := in.Claim.Status.Allocation.Devices.Config
	for i := range config {
		if config[i].Opaque != nil && config[i].Opaque.Driver == in.Driver {
			faults = append(faults, unrequestedConfig(in, &config[i], configPath(i), results)...)
		}
	}
	return faults
}

// unrequested checks a result against the spec and against the results before it.
func (r *ownResult) unrequested(c *resourceapi.ResourceClaim, earlier []ownResult) *field.Error {
	asked, ok := requestOf(c, r.Request)
	if !ok {
		return field.Invalid(r.path.Child("request"), r.Request, "the claim's spec has no such request: "+reallocate)
	}
	if r.AdminAccess && !asked.admin {
		return field.Invalid(r.path.Child("adminAccess"), true,
			fmt.Sprintf("request %s of the claim's spec does not ask for admin access: %s", r.Request, reallocate))
	}
	same := int64(1)
	for i := range earlier {
		switch {
		case earlier[i].Request == r.Request:
			same++
		case earlier[i].BaseRequest == r.BaseRequest:
			return field.Invalid(r.path.Child("request"), r.Request,
				fmt.Sprintf("request %s got its alternative %s already: %s", r.BaseRequest, earlier[i].Request, reallocate))
		}
	}
	if asked.most > 0 && same > asked.most {
		return field.Invalid(r.path.Child("device"), r.Device,
			fmt.Sprintf("request %s of the claim's spec asks for %d devices and this is number %d: %s", r.Request, asked.most, same, reallocate))
	}
	return nil
}

// unrequestedConfig checks a configuration of the allocation. If its source is the claim, it must be in the spec for the same devices. If
// its source is the class, it may differ from the class, which an administrator may have edited. It can only restrict, see
// applyLivePolicy.
func unrequestedConfig(
	in Input, entry *resourceapi.DeviceAllocationConfiguration, path *field.Path, results []ownResult,
) field.ErrorList {
	var faults field.ErrorList
	for i, name := range entry.Requests {
		if !hasRequest(in.Claim, name) {
			faults = append(faults, field.Invalid(path.Child("requests").Index(i), name, "the claim's spec has no such request: "+reallocate))
		}
	}
	if len(faults) > 0 || entry.Source != resourceapi.AllocationConfigSourceClaim {
		return faults
	}
	known := slices.ContainsFunc(in.Claim.Spec.Devices.Config, func(c resourceapi.DeviceClaimConfiguration) bool {
		return c.Opaque != nil && c.Opaque.Driver == in.Driver && sameJSON(c.Opaque.Parameters.Raw, entry.Opaque.Parameters.Raw) &&
			!slices.ContainsFunc(results, func(r ownResult) bool { return Named(entry.Requests, r.Request) && !Named(c.Requests, r.Request) })
	})
	if !known {
		faults = append(faults, field.Forbidden(path, "spec.devices.config of the claim has no such entry for these requests: "+reallocate))
	}
	return faults
}

// sameJSON compares two configurations. A scheduler copies the bytes; one that formats them in another way changes nothing.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}

// SPDX-License-Identifier: Apache-2.0

package nodefixture

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/objects"
)

// APIResult is an allocated device in a claim's status.
type APIResult = resourceapi.DeviceRequestAllocationResult

// Result is a device of Node that is allocated for a request.
func Result(request string, kind device.Kind, name string) APIResult {
	return APIResult{Request: request, Driver: v1alpha1.DriverName, Pool: device.PoolName(Node, kind), Device: name}
}

// Look is a result with admin access.
func Look(r APIResult) APIResult {
	r.AdminAccess = new(true)
	return r
}

// Class is the DeviceClass that all requests name.
const Class = "any"

// Allocated is the claim team-a/claim-UID with an allocation, and a spec that asks for it.
func Allocated(uid string, results ...APIResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: objects.Allocation(results...)},
	}
	objects.Asked(c, Class)
	return c
}

// Configured adds an opaque configuration to an allocated claim.
func Configured(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, parameters string) *resourceapi.ResourceClaim {
	devices := &c.Status.Allocation.Devices
	devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, DeviceConfiguration: objects.Opaque(v1alpha1.DriverName, parameters),
	})
	objects.Asked(c, Class)
	return c
}

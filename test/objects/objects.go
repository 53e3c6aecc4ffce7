// SPDX-License-Identifier: Apache-2.0

// Package objects makes the objects of the resource API that tests begin with, of what they say about them.
package objects

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Selectors are CEL expressions, all of which have to hold.
func Selectors(expressions ...string) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

// Class is a DeviceClass with selectors.
func Class(name string, expressions ...string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = Selectors(expressions...)
	return c
}

// Opaque is a configuration for a driver, in JSON.
func Opaque(driver, parameters string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
	}}
}

// Config is a claim's configuration for a driver, in JSON, for some of its requests or for all.
func Config(driver, parameters string, requests ...string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: Opaque(driver, parameters)}
}

// Request asks for one device of a class, as the API server stores it.
func Request(name, class string, expressions ...string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Selectors: Selectors(expressions...),
	}}
}

// Claim asks for devices.
func Claim(namespace, name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.Spec.Devices.Requests = requests
	return c
}

// Result is a device that was allocated for a request.
func Result(request, driver, pool, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: pool, Device: device}
}

// Allocation is what the scheduler writes to the status of a claim.
func Allocation(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocationResult {
	return &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
}

// ReservedFor is a pod that may use a claim.
func ReservedFor(pod string, uid types.UID) []resourceapi.ResourceClaimConsumerReference {
	return []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: uid}}
}

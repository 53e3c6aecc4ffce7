// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// dropper clears fields of gates that are off, and remembers which.
type dropper struct {
	set     Set
	dropped []string
}

// off says whether a gate is off.
func (d *dropper) off(gate string) bool { return !d.set.On(gate) }

// note remembers a field.
func (d *dropper) note(field, gate string) {
	if text := fmt.Sprintf("%s is dropped: %s is off in Kubernetes %s", field, gate, d.set.Version()); !slices.Contains(d.dropped, text) {
		d.dropped = append(d.dropped, text)
	}
}

// clearPointer clears a field that is a pointer.
func clearPointer[T any](d *dropper, gate, name string, field **T) {
	if *field != nil && d.off(gate) {
		*field = nil
		d.note(name, gate)
	}
}

// clearList clears a field that is a list.
func clearList[T any](d *dropper, gate, name string, field *[]T) {
	if len(*field) > 0 && d.off(gate) {
		*field = nil
		d.note(name, gate)
	}
}

// DropSlice clears the fields of a slice whose gates are off, as the API server does when it stores a new one, and returns a sentence
// about each.
func (s Set) DropSlice(slice *resourceapi.ResourceSlice) []string {
	d := &dropper{set: s}
	spec := &slice.Spec
	clearList(d, PartitionableDevices, "spec.sharedCounters", &spec.SharedCounters)
	clearPointer(d, PartitionableDevices, "spec.perDeviceNodeSelection", &spec.PerDeviceNodeSelection)
	clearPointer(d, PartitionableDevicesType, "spec.partitionTypeAttribute", &spec.PartitionTypeAttribute)
	clearList(d, OptionalNodeOperations, "spec.skipNodeOperations", &spec.SkipNodeOperations)
	for i := range spec.Devices {
		d.device(&spec.Devices[i])
	}
	return d.dropped
}

func (d *dropper) device(device *resourceapi.Device) {
	clearList(d, DeviceTaints, "spec.devices[].taints", &device.Taints)
	clearList(d, PartitionableDevices, "spec.devices[].consumesCounters", &device.ConsumesCounters)
	clearPointer(d, PartitionableDevices, "spec.devices[].nodeName", &device.NodeName)
	clearPointer(d, PartitionableDevices, "spec.devices[].nodeSelector", &device.NodeSelector)
	clearPointer(d, PartitionableDevices, "spec.devices[].allNodes", &device.AllNodes)
	for i := range device.ConsumesCounters {
		clearList(d, CompatibilityGroups, "spec.devices[].consumesCounters[].compatibilityGroups",
			&device.ConsumesCounters[i].CompatibilityGroups)
	}
	binding := DeviceBindingConditions
	if d.off(ResourceClaimDeviceStatus) {
		binding = ResourceClaimDeviceStatus
	}
	clearList(d, binding, "spec.devices[].bindingConditions", &device.BindingConditions)
	clearList(d, binding, "spec.devices[].bindingFailureConditions", &device.BindingFailureConditions)
	clearPointer(d, binding, "spec.devices[].bindsToNode", &device.BindsToNode)
	clearPointer(d, ConsumableCapacity, "spec.devices[].allowMultipleAllocations", &device.AllowMultipleAllocations)
	for name, capacity := range device.Capacity {
		clearPointer(d, ConsumableCapacity, "spec.devices[].capacity[].requestPolicy", &capacity.RequestPolicy)
		device.Capacity[name] = capacity
	}
	if len(device.NodeAllocatableResources) > 0 && d.off(NodeAllocatableResources) {
		device.NodeAllocatableResources = nil
		d.note("spec.devices[].nodeAllocatableResources", NodeAllocatableResources)
	}
	for name, attribute := range device.Attributes {
		clearList(d, ListTypeAttributes, "spec.devices[].attributes[].bools", &attribute.BoolValues)
		clearList(d, ListTypeAttributes, "spec.devices[].attributes[].ints", &attribute.IntValues)
		clearList(d, ListTypeAttributes, "spec.devices[].attributes[].strings", &attribute.StringValues)
		clearList(d, ListTypeAttributes, "spec.devices[].attributes[].versions", &attribute.VersionValues)
		device.Attributes[name] = attribute
	}
}

// DropClass clears the fields of a class whose gates are off.
func (s Set) DropClass(class *resourceapi.DeviceClass) []string {
	d := &dropper{set: s}
	clearPointer(d, ExtendedResource, "spec.extendedResourceName", &class.Spec.ExtendedResourceName)
	return d.dropped
}

// DropClaim clears the fields of a claim, or of what a template makes, whose gates are off.
func (s Set) DropClaim(spec *resourceapi.ResourceClaimSpec, status *resourceapi.ResourceClaimStatus) []string {
	d := &dropper{set: s}
	for i := range spec.Devices.Requests {
		d.request(&spec.Devices.Requests[i])
	}
	for i := range spec.Devices.Constraints {
		clearPointer(d, ConsumableCapacity, "spec.devices.constraints[].distinctAttribute", &spec.Devices.Constraints[i].DistinctAttribute)
	}
	if status == nil || status.Allocation == nil {
		return d.dropped
	}
	for i := range status.Allocation.Devices.Results {
		d.result(&status.Allocation.Devices.Results[i])
	}
	return d.dropped
}

func (d *dropper) request(request *resourceapi.DeviceRequest) {
	const field = "spec.devices.requests[].firstAvailable"
	clearList(d, PrioritizedList, field, &request.FirstAvailable)
	if e := request.Exactly; e != nil {
		clearPointer(d, AdminAccess, "spec.devices.requests[].exactly.adminAccess", &e.AdminAccess)
		clearList(d, DeviceTaints, "spec.devices.requests[].exactly.tolerations", &e.Tolerations)
		clearPointer(d, ConsumableCapacity, "spec.devices.requests[].exactly.capacity", &e.Capacity)
		clearList(d, DerivedAttributes, "spec.devices.requests[].exactly.derivedAttributes", &e.DerivedAttributes)
	}
	for i := range request.FirstAvailable {
		sub := &request.FirstAvailable[i]
		clearList(d, DeviceTaints, field+"[].tolerations", &sub.Tolerations)
		clearPointer(d, ConsumableCapacity, field+"[].capacity", &sub.Capacity)
		clearList(d, DerivedAttributes, field+"[].derivedAttributes", &sub.DerivedAttributes)
	}
}

func (d *dropper) result(result *resourceapi.DeviceRequestAllocationResult) {
	const field = "status.allocation.devices.results[]"
	clearPointer(d, AdminAccess, field+".adminAccess", &result.AdminAccess)
	clearPointer(d, ConsumableCapacity, field+".shareID", &result.ShareID)
	if len(result.ConsumedCapacity) > 0 && d.off(ConsumableCapacity) {
		result.ConsumedCapacity = nil
		d.note(field+".consumedCapacity", ConsumableCapacity)
	}
	clearList(d, DeviceBindingConditions, field+".bindingConditions", &result.BindingConditions)
	clearList(d, DeviceBindingConditions, field+".bindingFailureConditions", &result.BindingFailureConditions)
	clearList(d, OptionalNodeOperations, field+".skipNodeOperations", &result.SkipNodeOperations)
}

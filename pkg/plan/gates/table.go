// SPDX-License-Identifier: Apache-2.0

package gates

// Names of gates, as in pkg/features of Kubernetes.
const (
	AdminAccess               = "DRAAdminAccess"
	CompatibilityGroups       = "DRADeviceCompatibilityGroups"
	ConsumableCapacity        = "DRAConsumableCapacity"
	DerivedAttributes         = "DRADerivedAttributes"
	DeviceBindingConditions   = "DRADeviceBindingConditions"
	DeviceTaintRules          = "DRADeviceTaintRules"
	DeviceTaints              = "DRADeviceTaints"
	DynamicResourceAllocation = "DynamicResourceAllocation"
	ExtendedResource          = "DRAExtendedResource"
	FilterTimeout             = "DRASchedulerFilterTimeout"
	FractionalCapacityRange   = "DRAFractionalCapacityRange"
	ListTypeAttributes        = "DRAListTypeAttributes"
	NodeAllocatableResources  = "DRANodeAllocatableResources"
	OptionalNodeOperations    = "DRAOptionalNodeOperations"
	PartitionableDevices      = "DRAPartitionableDevices"
	PartitionableDevicesType  = "DRAPartitionableDevicesType"
	PrioritizedList           = "DRAPrioritizedList"
	ResourceClaimDeviceStatus = "DRAResourceClaimDeviceStatus"
	ResourcePoolStatus        = "DRAResourcePoolStatus"
	WorkloadResourceClaims    = "DRAWorkloadResourceClaims"
)

// maturity is how far a feature is.
type maturity int

const (
	alpha maturity = iota
	beta
	general
)

// stage is what a gate is from a minor version on.
type stage struct {
	from     int
	on       bool
	maturity maturity
	locked   bool
}

type gate struct {
	name   string
	stages []stage
	needs  []string
}

// at returns the stage of a minor version, and whether the gate exists there.
func (g gate) at(minor int) (s stage, known bool) {
	for _, next := range g.stages {
		if next.from <= minor {
			s, known = next, true
		}
	}
	return s, known
}

// table has the gates, from pkg/features/kube_features.go of Kubernetes 1.37. DRAFractionalCapacityRange is off in 1.37: it is on from
// the minimal compatibility version 1.37 on, and that of a program of 1.37 is 1.36.
func table() []gate {
	return []gate{
		{AdminAccess, []stage{{34, true, beta, false}, {36, true, general, true}}, nil},
		{ConsumableCapacity, []stage{{34, false, alpha, false}, {36, true, beta, false}}, nil},
		{DerivedAttributes, []stage{{37, false, alpha, false}}, nil},
		{DeviceBindingConditions, []stage{{34, false, alpha, false}, {36, true, beta, false}}, []string{ResourceClaimDeviceStatus}},
		{CompatibilityGroups, []stage{{37, false, alpha, false}}, []string{PartitionableDevices}},
		{
			DeviceTaintRules,
			[]stage{{35, false, alpha, false}, {36, false, beta, false}, {37, true, general, false}},
			[]string{DeviceTaints},
		},
		{DeviceTaints, []stage{{33, false, alpha, false}, {36, true, beta, false}, {37, true, general, false}}, nil},
		{ExtendedResource, []stage{{34, false, alpha, false}, {36, true, beta, false}, {37, true, general, true}}, nil},
		{FractionalCapacityRange, []stage{{37, false, beta, false}}, []string{ConsumableCapacity}},
		{ListTypeAttributes, []stage{{36, false, alpha, false}}, nil},
		{NodeAllocatableResources, []stage{{36, false, alpha, false}}, nil},
		{OptionalNodeOperations, []stage{{37, false, alpha, false}}, nil},
		{PartitionableDevices, []stage{{33, false, alpha, false}, {36, true, beta, false}}, nil},
		{PartitionableDevicesType, []stage{{37, false, alpha, false}}, []string{PartitionableDevices, ResourcePoolStatus}},
		{
			PrioritizedList,
			[]stage{{33, false, alpha, false}, {34, true, beta, false}, {36, true, general, false}, {37, true, general, true}},
			nil,
		},
		{ResourceClaimDeviceStatus, []stage{{33, true, beta, false}, {37, true, general, true}}, nil},
		{ResourcePoolStatus, []stage{{36, false, alpha, false}}, nil},
		{FilterTimeout, []stage{{34, true, beta, false}}, nil},
		{WorkloadResourceClaims, []stage{{36, false, alpha, false}, {37, false, beta, false}}, nil},
		{DynamicResourceAllocation, []stage{{34, true, general, false}, {35, true, general, true}}, nil},
	}
}

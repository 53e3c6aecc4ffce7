// SPDX-License-Identifier: Apache-2.0

// Package partition decides what one physical device is published as: whole, in parts (MIG instances, AMD compute partitions, virtual
// functions), for a virtual machine (VFIO), or several of these, of which a claim gets one. Whole, parts and VFIO of a device consume
// counters of one card (KEP-4815), so that the scheduler gives each slice of it once.
//
// Everything here is a function from values to values. It knows neither PartitionPolicies (see the package policy) nor how a partition is
// made.
package partition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// Settings are what a policy wants of one physical device. At most one of MIG, AMD and SRIOV is set. The zero value leaves the device as
// it is.
type Settings struct {
	MIG   *MIG   `json:"mig,omitempty"`
	AMD   *AMD   `json:"amd,omitempty"`
	SRIOV *SRIOV `json:"sriov,omitempty"`
	// Passthrough publishes the device for virtual machines too.
	Passthrough bool `json:"passthrough,omitempty"`
	// Sharing lets several claims have the device, or an instance of a static layout of it.
	Sharing *Sharing `json:"sharing,omitempty"`
	// Strategies are the strategies, by their name in a GPUConfig, that claims may choose.
	Strategies []string `json:"strategies,omitempty"`
	// Interval is how long a turn is where claims have shares with time slices, by its name in a GPUConfig. Empty: Default.
	Interval string `json:"interval,omitempty"`
}

// WithoutPCI returns the settings for which no attributes of PCI devices are written, and the names of the others.
func (s Settings) WithoutPCI() (left Settings, forbidden []string) {
	for name, set := range map[string]bool{"amd": s.AMD != nil, "sriov": s.SRIOV != nil, "passthrough": s.Passthrough} {
		if set {
			forbidden = append(forbidden, name)
		}
	}
	if len(forbidden) == 0 {
		return s, nil
	}
	slices.Sort(forbidden)
	return Settings{MIG: s.MIG, Sharing: s.Sharing, Strategies: s.Strategies, Interval: s.Interval}, forbidden
}

// Forbidden says that a node does not carry out some settings.
func Forbidden(settings []string) Reason {
	return Reason{Reason: ReasonForbidden, Message: fmt.Sprintf("this node writes no attributes of PCI devices, which %s needs: set "+
		"partitions.pci in the chart's values, or exclude the node from the policy", strings.Join(settings, " and "))}
}

// Sharing is by how many claims a device is shared, and how much of its memory each may have.
type Sharing struct {
	MaxClaims int `json:"maxClaims"`
	// Memory is nil if memory is not counted.
	Memory *SharedMemory `json:"memory,omitempty"`
}

// SharedMemory is how much memory a share may have, in bytes. Without Values, Min is the least, Max the most (0: all of the device), and
// Step what lies between two amounts (0: any).
type SharedMemory struct {
	Default int64   `json:"default"`
	Values  []int64 `json:"values,omitempty"`
	Min     int64   `json:"min,omitempty"`
	Max     int64   `json:"max,omitempty"`
	Step    int64   `json:"step,omitempty"`
}

// MinorForBoth is the first minor version of Kubernetes 1 whose scheduler heeds counters of shared devices (kubernetes/kubernetes#139040,
// #140431, #140437, #140518).
const MinorForBoth = 37

// Kept is what the API server keeps of slices, and what the scheduler can do with it.
type Kept struct {
	// Counters of cards (KEP-4815).
	Counters bool
	// Shares are devices that several claims have (KEP-5075).
	Shares bool
	// Both says that one device may consume counters and be shared. Schedulers before Kubernetes 1.37 give such a device away beside what
	// excludes it.
	Both bool
}

// MIGMode is how the instances of a GPU come about.
type MIGMode string

// The modes.
const (
	// MIGDynamic makes an instance when a claim has it allocated, and destroys it afterwards.
	MIGDynamic MIGMode = "Dynamic"
	// MIGStatic makes the instances of a layout once, whether claims use them or not.
	MIGStatic MIGMode = "Static"
	// MIGDisabled switches MIG mode off.
	MIGDisabled MIGMode = "Disabled"
)

// MIG is how an NVIDIA GPU is divided.
type MIG struct {
	Mode MIGMode `json:"mode"`
	// Profiles are those that MIGDynamic may make; none: all that the GPU has.
	Profiles []string `json:"profiles,omitempty"`
	// Layout is what MIGStatic makes. An empty one is MIG mode without instances.
	Layout []Instances `json:"layout,omitempty"`
}

// Instances are alike instances of a static layout.
type Instances struct {
	Profile string `json:"profile"`
	Count   int    `json:"count"`
	// Starts are the memory slices at which the instances begin, as many as Count, or none: Place finds some.
	Starts []uint32 `json:"starts,omitempty"`
}

// AMD is how an AMD GPU is divided, in the kernel's words: CPX, NPS4. An empty one stays as it is.
type AMD struct {
	Compute string `json:"compute,omitempty"`
	Memory  string `json:"memory,omitempty"`
}

// SRIOV is how many virtual functions a device has, and what each gets.
type SRIOV struct {
	VirtualFunctions int `json:"virtualFunctions"`
	Xe               *Xe `json:"xe,omitempty"`
}

// Xe is what Intel's driver xe gives each virtual function (Documentation/ABI/testing/sysfs-driver-intel-xe-sriov). What is nil or zero
// stays as the driver has it.
type Xe struct {
	ExecQuantumMS    *int32 `json:"execQuantumMS,omitempty"`
	PreemptTimeoutUS *int32 `json:"preemptTimeoutUS,omitempty"`
	SchedPriority    string `json:"schedPriority,omitempty"`
	// VRAMQuota is in bytes.
	VRAMQuota int64 `json:"vramQuota,omitempty"`
}

// Physical is a physical device as it is now.
type Physical struct {
	// Device is the whole device, as discovery describes one that is not divided.
	Device device.Device
	// MIG is what NVML says of the GPU; nil if it cannot be divided. While NVML does not answer, give its last answer.
	MIG *nvml.MIG
	// MIGUnknown says that NVML does not tell now. MIG is its last answer then, nil if there was none.
	MIGUnknown bool
	// Divided says that discovery does not show the device whole, as programs cannot use it so now, as far as is known.
	Divided bool
	// Foreign are the placements of instances that Fettle did not make.
	Foreign []nvml.MIGPlacement
	// AMD is what the kernel says of the GPU; nil if it cannot be divided.
	AMD *AMDModes
	// Functions are the device's virtual functions; nil without SR-IOV.
	Functions *Functions
	// IOMMU says that the device could be given to a virtual machine: an IOMMU isolates its group, and nothing else uses the group.
	IOMMU bool
	// Held are the names of the devices made from this one that claims have or are about to get. They stay published, under the same name and
	// with the same counters, whatever the settings say: an allocated device that is not published frees its counters.
	Held map[string]bool
	// Shares are those of Held of which claims have shares.
	Shares map[string]bool
}

// Division is what a physical device is published as.
type Division struct {
	// Card has the counters that Devices consume; nil if there is nothing to share.
	Card *device.Card
	// Devices are what is published, those first that leave the most room for others. A partition's Edits are empty.
	Devices []device.Device
	// Parts say by a device's name what part of the physical device it is. The whole device is not among them.
	Parts map[string]Part
	// Create are the instances of a static layout that do not exist, and may be made while nothing of the GPU is held. Destroy are instances
	// that Fettle made, that nothing holds and that the settings do not want.
	Create  []Slot
	Destroy []nvml.MIGInstance
	// Settling are the devices that are shared, or not, because claims have them so. They change once these claims end.
	Settling []string
	// Reasons say why something is not published, in a fixed order.
	Reasons []Reason
}

// Part is a part of a physical device, or its VFIO form.
type Part struct {
	// Parent is the name of the whole device.
	Parent string `json:"parent"`
	// Type is device.TypeMIG, TypePartition, TypeVF or TypeVFIO.
	Type string `json:"type"`
	// Profile is the name of the MIG profile or "cpx-nps4", ProfileID NVIDIA's number of it on this GPU, Placement where the instance is.
	Profile   string            `json:"profile,omitempty"`
	ProfileID uint32            `json:"profileID,omitempty"`
	Placement nvml.MIGPlacement `json:"placement,omitzero"`
	Instance  *nvml.MIGInstance `json:"instance,omitempty"`
	// Index is the number of the partition or virtual function, from 0.
	Index int `json:"index,omitempty"`
}

// Reason is why devices are not published.
type Reason struct {
	// Reason is one of the Reason constants, Message says what was expected and what to do next.
	Reason  string
	Message string
	// Devices is how many devices it keeps from being published.
	Devices int
}

// The reasons.
const (
	// ReasonMIGMode: the GPU is in MIG mode, or not, and the settings want the other.
	ReasonMIGMode = "MIGMode"
	// ReasonForeignInstance: somebody else made an instance.
	ReasonForeignInstance = "ForeignInstance"
	// ReasonLayoutPending: instances of a static layout do not exist yet.
	ReasonLayoutPending = "LayoutPending"
	// ReasonLayoutImpossible: a static layout does not fit on the GPU.
	ReasonLayoutImpossible = "LayoutImpossible"
	// ReasonUnknownProfile: the GPU has no such profile.
	ReasonUnknownProfile = "UnknownProfile"
	// ReasonNotDivisible: the device cannot be divided in the way that the settings want.
	ReasonNotDivisible = "NotDivisible"
	// ReasonForbidden: the node's configuration keeps the device as it is.
	ReasonForbidden = "PartitioningForbidden"
	// ReasonNoCounters: the API server keeps no counters, so nothing is published that shares a card with something else.
	ReasonNoCounters = "NoCounters"
	// ReasonModePending: the GPU is in another partition mode than the settings want.
	ReasonModePending = "ModePending"
	// ReasonFunctionsPending: the device has another number of virtual functions than the settings want.
	ReasonFunctionsPending = "FunctionsPending"
	// ReasonNoShares: the API server keeps no shares, or not together with counters, so that one claim has the device.
	ReasonNoShares = "NoShares"
	// ReasonSharingPending: a claim has the device for itself, so that it is not shared yet.
	ReasonSharingPending = "SharingPending"
	// ReasonSharingImpossible: the memory of a share is more than the device has.
	ReasonSharingImpossible = "SharingImpossible"
	// ReasonNoIOMMU: nothing isolates the device from the host's memory.
	ReasonNoIOMMU = "NoIOMMU"
)

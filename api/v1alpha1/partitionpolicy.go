// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindPartitionPolicy is the kind of partition policies.
const KindPartitionPolicy = "PartitionPolicy"

// The condition types of a PartitionPolicy, beside Valid.
const (
	// ConditionApplied is true while every device that the policy holds for is as the policy wants it, and unknown while it holds for none or
	// nodes did not act on the present generation yet.
	ConditionApplied = "Applied"
	// ConditionOverruled is true while another policy holds for devices that this one selects; its message says which.
	ConditionOverruled = "Overruled"
)

// PartitionPolicy says how devices are divided among claims: into parts, whole, or for virtual machines, and who may use the nodes that
// have them. For each device one policy holds: the one with the highest priority, and of these the oldest. A device for which no policy
// holds stays as it is, and what policies had made of it before is taken back once no claim has anything of it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName={partition,partitions},categories=fettle
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="MIG",type=string,JSONPath=`.spec.devices.nvidia.mig.mode`
// +kubebuilder:printcolumn:name="AMD",type=string,JSONPath=`.spec.devices.amd.compute`
// +kubebuilder:printcolumn:name="VFs",type=integer,JSONPath=`.spec.devices.sriov.virtualFunctions`
// +kubebuilder:printcolumn:name="VFIO",type=boolean,JSONPath=`.spec.devices.passthrough`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.spec.devices.sharing.maxClaims`
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.status.devices`
// +kubebuilder:printcolumn:name="Waiting",type=integer,JSONPath=`.status.waitingNodes`
// +kubebuilder:printcolumn:name="Tainted",type=integer,JSONPath=`.status.taintedNodes`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Why",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Applied")].message`
type PartitionPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is which devices and nodes the policy is for, and how they are divided.
	Spec PartitionPolicySpec `json:"spec"`
	// Status is what the controller found out.
	// +optional
	Status PartitionPolicyStatus `json:"status,omitzero"`
}

// PartitionPolicyList is a list of PartitionPolicies.
//
// +kubebuilder:object:root=true
type PartitionPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []PartitionPolicy `json:"items"`
}

// PartitionPolicySpec is which devices and nodes a policy is for, and how they are divided.
//
// +kubebuilder:validation:XValidation:rule="has(self.devices) || has(self.nodes)",message="set devices, nodes or both"
type PartitionPolicySpec struct {
	// NodeSelector selects nodes by their labels. Unset: all.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Priority decides between policies for one device, and between taints with the same key and effect for one node: the highest holds. At
	// equal priority the oldest does.
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Devices are how the selected nodes' devices are divided. Unset: the policy holds for no device.
	// +optional
	Devices PartitionDevices `json:"devices,omitzero"`
	// Nodes are who may use the selected nodes. Unset: the policy changes nothing about that.
	// +optional
	Nodes *NodePartition `json:"nodes,omitempty"`
}

// DividesDevices says whether the policy is about devices, and not about nodes alone.
func (s *PartitionPolicySpec) DividesDevices() bool { return s.Devices != PartitionDevices{} }

// PartitionDevices are how devices are divided. A device is divided in one way, so that at most one of nvidia, amd and sriov is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.nvidia) || has(self.amd) || has(self.sriov) || has(self.passthrough) || has(self.sharing)",message="say what becomes of the devices: set nvidia, amd, sriov, passthrough or sharing"
// +kubebuilder:validation:XValidation:rule="(has(self.nvidia) ? 1 : 0) + (has(self.amd) ? 1 : 0) + (has(self.sriov) ? 1 : 0) <= 1",message="a device is divided in one way: set at most one of nvidia, amd and sriov, and write a policy for each"
// +kubebuilder:validation:XValidation:rule="!has(self.passthrough) || !self.passthrough || !has(self.nvidia) || self.nvidia.mig.mode in ['Dynamic', 'Disabled']",message="passthrough needs the GPU whole, which a static layout does not leave: use mode Dynamic or Disabled"
type PartitionDevices struct {
	// DeviceSelector selects devices. Unset: all whole GPUs, and with nvidia or amd those of that vendor.
	// +optional
	DeviceSelector *PartitionDeviceSelector `json:"deviceSelector,omitempty"`
	// NVIDIA is for NVIDIA's GPUs.
	// +optional
	NVIDIA *NVIDIAPartition `json:"nvidia,omitempty"`
	// AMD is for AMD's GPUs.
	// +optional
	AMD *AMDPartition `json:"amd,omitempty"`
	// SRIOV is for GPUs with virtual functions.
	// +optional
	SRIOV *SRIOVPartition `json:"sriov,omitempty"`
	// Passthrough publishes each device for virtual machines too, with type vfio: it is bound to a VFIO driver while a claim has it. Unset:
	// false.
	// +optional
	Passthrough *bool `json:"passthrough,omitempty"`
	// Sharing lets several claims have one device at once, a whole GPU or an instance of a static layout, and says how programs may take
	// turns on it. Unset: one claim has it, and programs take turns as the GPU's driver has it. Several claims need
	// an API server that keeps consumable capacity: Kubernetes 1.36 or later, or the feature gate DRAConsumableCapacity. Before Kubernetes
	// 1.37 a GPU of which claims may have parts too, or which is for virtual machines too, is not shared.
	// +optional
	Sharing *DeviceSharing `json:"sharing,omitempty"`
}

// DeviceSharing is by how many claims a device is shared, in which amounts of memory, and how programs may take turns. Nothing but the
// number of claims and the sum of their memory is kept: no container is kept from using more of a GPU than its claim was granted.
//
// +kubebuilder:validation:XValidation:rule="has(self.maxClaims) || has(self.strategies)",message="set maxClaims, strategies or both"
// +kubebuilder:validation:XValidation:rule="has(self.maxClaims) || !has(self.memory)",message="memory is counted where several claims have a device: set maxClaims"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || has(self.maxClaims) && has(self.strategies) && 'TimeSlicing' in self.strategies",message="interval is for shares with time slices: set maxClaims, and TimeSlicing in strategies"
type DeviceSharing struct {
	// MaxClaims is how many shares of a device there are. Unset: one claim has it.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=256
	// +optional
	MaxClaims int32 `json:"maxClaims,omitempty"`
	// Strategies are what a class or claim may choose in sharing.strategy of its GPUConfig: TimeSlicing, MPS. They are for NVIDIA's GPUs.
	// TimeSlicing sets how long a turn is, for all programs of a whole GPU. With maxClaims it is what every claim has that has a share of a
	// whole GPU, with this policy's interval, and a claim that chooses otherwise is refused. MPS runs NVIDIA's Multi-Process
	// Service for the programs of one
	// claim that has the GPU, or an instance of a static layout, for itself; it needs mps.enabled in the chart's values. Unset: neither.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=TimeSlicing;MPS
	// +optional
	Strategies []SharingStrategy `json:"strategies,omitempty"`
	// Interval is how long a turn is on GPUs of which claims have shares: Default, Short, Medium or Long. It needs maxClaims, and TimeSlicing
	// in strategies. A claim that has a GPU for itself chooses its own. Unset: Default.
	// +kubebuilder:validation:Enum=Default;Short;Medium;Long
	// +optional
	Interval TimeSliceInterval `json:"interval,omitempty"`
	// Memory is how much of the device's memory a share has. Unset: shares are counted and memory is not, and a claim that asks for an amount
	// of memory does not get the device.
	// +optional
	Memory *SharedMemory `json:"memory,omitempty"`
}

// SharedMemory is how much memory a share may have. The sum over all shares of a device is at most what the device has.
//
// +kubebuilder:validation:XValidation:rule="!has(self.range) || !has(self.values)",message="set range or values"
// +kubebuilder:validation:XValidation:rule="!has(self.values) || !self.default.matches('[eE]') && self.values.exists(v, !v.matches('[eE]') && quantity(v).compareTo(quantity(self.default)) == 0)",message="default must be one of values"
// +kubebuilder:validation:XValidation:rule="!has(self.range) || !(self.default + self.range.min).matches('[eE]') && quantity(self.default).compareTo(quantity(self.range.min)) >= 0",message="default must be at least range.min"
// +kubebuilder:validation:XValidation:rule="!has(self.range) || !has(self.range.max) || !(self.default + self.range.max).matches('[eE]') && quantity(self.default).compareTo(quantity(self.range.max)) <= 0",message="default must be at most range.max"
// +kubebuilder:validation:XValidation:rule="!has(self.range) || !has(self.range.step) || !(self.default + self.range.min + self.range.step).matches('[eE]') && quantity(self.default).sub(quantity(self.range.min)).asInteger() % quantity(self.range.step).asInteger() == 0",message="default must be range.min and a multiple of range.step"
type SharedMemory struct {
	// Default is what a claim is granted that asks for no amount: 10Gi.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`
	Default string `json:"default"`
	// Range are the amounts that a claim may ask for. Neither range nor values: the default only.
	// +optional
	Range *MemoryRange `json:"range,omitempty"`
	// Values are the amounts that a claim may ask for, in rising order. An amount in between is rounded up.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:items:Pattern=`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`
	// +optional
	Values []string `json:"values,omitempty"`
}

// MemoryRange are amounts of memory from a least one on.
//
// +kubebuilder:validation:XValidation:rule="!has(self.max) || !(self.min + self.max).matches('[eE]') && quantity(self.min).compareTo(quantity(self.max)) <= 0",message="min must be at most max"
// +kubebuilder:validation:XValidation:rule="!has(self.max) || !has(self.step) || !(self.min + self.max + self.step).matches('[eE]') && quantity(self.max).sub(quantity(self.min)).asInteger() % quantity(self.step).asInteger() == 0",message="max must be min and a multiple of step"
type MemoryRange struct {
	// Min is the least. A claim that asks for less is granted this.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`
	Min string `json:"min"`
	// Max is the most. Unset: what the device has.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`
	// +optional
	Max string `json:"max,omitempty"`
	// Step has amounts rounded up to min and a multiple of step. Max and the default must be such amounts. Unset: any amount.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`
	// +optional
	Step string `json:"step,omitempty"`
}

// PartitionDeviceSelector selects devices.
type PartitionDeviceSelector struct {
	// CEL is a condition on a whole device, as in a DeviceClass: device.attributes["fettle.dev"].architecture == "Hopper". A device for which
	// it fails is not selected.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	CEL string `json:"cel"`
}

// NVIDIAPartition is how NVIDIA's GPUs are divided.
type NVIDIAPartition struct {
	// MIG is Multi-Instance GPU.
	MIG MIGPartition `json:"mig"`
}

// MIGMode is how the instances of a GPU come about.
//
// +kubebuilder:validation:Enum=Dynamic;Static;MigParted;Disabled
type MIGMode string

// The modes.
const (
	// MIGDynamic publishes every place of the allowed profiles and the whole GPU. An instance is made when a claim gets it, and destroyed
	// afterwards.
	MIGDynamic MIGMode = "Dynamic"
	// MIGStatic makes the instances of the layout once.
	MIGStatic MIGMode = "Static"
	// MIGParted is a static layout by a configuration file of NVIDIA's mig-parted.
	MIGParted MIGMode = "MigParted"
	// MIGDisabled switches MIG mode off: GPUs are given whole.
	MIGDisabled MIGMode = "Disabled"
)

// MIGPartition is how a GPU is divided into instances.
//
// +kubebuilder:validation:XValidation:rule="!has(self.profiles) || self.mode == 'Dynamic'",message="profiles are for mode Dynamic"
// +kubebuilder:validation:XValidation:rule="has(self.layout) == (self.mode == 'Static')",message="set layout for mode Static, and only for it"
// +kubebuilder:validation:XValidation:rule="has(self.migParted) == (self.mode == 'MigParted')",message="set migParted for mode MigParted, and only for it"
type MIGPartition struct {
	// Mode is Dynamic, Static, MigParted or Disabled. Dynamic needs an API server that keeps counters: Kubernetes 1.36 or later, or the
	// feature gate DRAPartitionableDevices.
	Mode MIGMode `json:"mode"`
	// Profiles lists the profiles that claims may have in mode Dynamic, such as 1g.10gb. Unset: all that the GPU has.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[1-9][0-9]?g[.][1-9][0-9]{0,3}gb([+-][a-z][a-z.,]*)*$`
	// +optional
	Profiles []string `json:"profiles,omitempty"`
	// Layout is what mode Static makes of each GPU. It must fit on the GPU whole, or nothing of it is made.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Layout []MIGInstances `json:"layout,omitempty"`
	// MigParted is a configuration of mig-parted.
	// +optional
	MigParted *MigPartedConfig `json:"migParted,omitempty"`
}

// MIGInstances are alike instances of a layout.
//
// +kubebuilder:validation:XValidation:rule="!has(self.starts) || size(self.starts) == self.count",message="give a start for each instance, or none"
type MIGInstances struct {
	// Profile is the name of the instances' profile: 3g.40gb.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]?g[.][1-9][0-9]{0,3}gb([+-][a-z][a-z.,]*)*$`
	Profile string `json:"profile"`
	// Count is how many instances there are.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Count int32 `json:"count"`
	// Starts are the memory slices at which the instances begin. Unset: where they fit, the largest first.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=63
	// +optional
	Starts []int32 `json:"starts,omitempty"`
}

// MigPartedConfig is a configuration file of NVIDIA's mig-parted, and which configuration of it holds.
type MigPartedConfig struct {
	// Config is the name of the configuration: all-1g.10gb.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Config string `json:"config"`
	// Document is the file as it is. GPUs that the configuration has no entry for stay as they are.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Document string `json:"document"`
}

// AMDPartition is the mode of AMD's GPUs. The whole GPU and its partitions in this mode are published.
//
// +kubebuilder:validation:XValidation:rule="has(self.compute) || has(self.memory)",message="set compute, memory or both"
// +kubebuilder:validation:XValidation:rule="!has(self.compute) || !has(self.memory) || self.memory == 'NPS1' || self.compute == 'DPX' && self.memory == 'NPS2' || self.compute in ['TPX', 'QPX', 'CPX'] && self.memory == 'NPS4'",message="these modes do not go together: SPX has NPS1, DPX has NPS1 or NPS2, TPX, QPX and CPX have NPS1 or NPS4"
type AMDPartition struct {
	// Compute is into how many partitions a GPU is divided: SPX is 1, DPX 2, TPX 3, QPX 4, and CPX has one for each compute die. Unset: it
	// stays as it is.
	// +optional
	Compute AMDComputeMode `json:"compute,omitempty"`
	// Memory is into how many parts the memory is divided. It is the same on all GPUs of a node, and changes only while none is in use.
	// Unset: it stays as it is.
	// +optional
	Memory AMDMemoryMode `json:"memory,omitempty"`
}

// AMDComputeMode is a compute partition mode of amdgpu.
//
// +kubebuilder:validation:Enum=SPX;DPX;TPX;QPX;CPX
type AMDComputeMode string

// AMDMemoryMode is a memory partition mode of amdgpu.
//
// +kubebuilder:validation:Enum=NPS1;NPS2;NPS4
type AMDMemoryMode string

// SRIOVPartition is how many virtual functions a device has, and what each gets.
type SRIOVPartition struct {
	// VirtualFunctions is how many there are. 0 removes them.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	VirtualFunctions int32 `json:"virtualFunctions"`
	// Xe is what each virtual function of a GPU with Intel's driver xe gets. Unset: an equal share, as the driver gives it.
	// +optional
	Xe *XeProvisioning `json:"xe,omitempty"`
}

// XeProvisioning is what Intel's driver xe gives each virtual function of a GPU (Linux 6.19 or later; vramQuota 7.0).
//
// +kubebuilder:validation:XValidation:rule="has(self.execQuantumMS) || has(self.preemptTimeoutUS) || has(self.schedPriority) || has(self.vramQuota)",message="set at least one field"
type XeProvisioning struct {
	// ExecQuantumMS is how many milliseconds a virtual function runs before it is another's turn. 0: without end.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +optional
	ExecQuantumMS *int32 `json:"execQuantumMS,omitempty"`
	// PreemptTimeoutUS is after how many microseconds a virtual function is reset that does not yield. 0: never.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000000
	// +optional
	PreemptTimeoutUS *int32 `json:"preemptTimeoutUS,omitempty"`
	// SchedPriority is low, normal or high.
	// +optional
	SchedPriority XePriority `json:"schedPriority,omitempty"`
	// VRAMQuota is the memory of the GPU that each virtual function gets: 4Gi. Unset: an equal share.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,12}(Ki|Mi|Gi|Ti)?$`
	// +optional
	VRAMQuota string `json:"vramQuota,omitempty"`
}

// XePriority is a scheduling priority of xe.
//
// +kubebuilder:validation:Enum=low;normal;high
type XePriority string

// MaxWaitingNodes is how many nodes a status lists.
const MaxWaitingNodes = 32

// PartitionPolicyStatus is what the controller found out about a policy.
type PartitionPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes is how many nodes have a device that the policy holds for.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Nodes int32 `json:"nodes"`
	// Devices is how many devices the policy holds for.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Devices int32 `json:"devices"`
	// WaitingNodes is how many nodes have a device that is not yet as the policy wants it.
	// +kubebuilder:validation:Minimum=0
	// +optional
	WaitingNodes int32 `json:"waitingNodes"`
	// Waiting are these nodes, sorted by name: the first 32.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Waiting []WaitingNode `json:"waiting,omitempty"`
	// TaintedNodes is how many nodes have all taints of the policy.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TaintedNodes int32 `json:"taintedNodes,omitempty"`
	// ToleratedTaints are the taints of the policy that new pods with devices tolerate. One that a node has from somebody else is not among
	// them, unless the administrator shares it: pods with devices would run on that node, too.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	ToleratedTaints []NodeTaint `json:"toleratedTaints,omitempty"`
	// Conditions are Valid, of a policy with devices Applied and Overruled, of a policy with taints Tainted
	// and Repelling, and of one with priority classes PriorityClasses.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WaitingNode is a node with devices that are not yet as a policy wants them.
type WaitingNode struct {
	// Node is the node's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Devices is how many devices wait.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Devices int32 `json:"devices"`
	// Reason is why the first of them waits, in CamelCase.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// Message says what was expected and what to do next.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// SetWaiting keeps the first MaxWaitingNodes of a list that is sorted by node, cuts texts that are too long, and counts them all.
func (s *PartitionPolicyStatus) SetWaiting(nodes []WaitingNode) {
	s.WaitingNodes = int32(min(len(nodes), 1<<31-1))
	s.Waiting = nil
	for _, n := range nodes[:min(len(nodes), MaxWaitingNodes)] {
		n.Reason, n.Message = cut(n.Reason, 128), cut(n.Message, 1024)
		s.Waiting = append(s.Waiting, n)
	}
}

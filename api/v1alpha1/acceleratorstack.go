// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// KindAcceleratorStack is the kind of stacks.
const KindAcceleratorStack = "AcceleratorStack"

// MaxWaitingStackNodes is how many nodes the status of a stack names. The rest is only counted.
const MaxWaitingStackNodes = 16

// maxStackClasses is how many classes a stack checks, as the CRD has it.
const maxStackClasses = 16

// The condition types of an AcceleratorStack, beside Overruled, and Degraded, which is true while a state of some node has failed.
const (
	// ConditionAvailable is true while every node of the stack has passed every state, and unknown while the stack has no node.
	ConditionAvailable = "Available"
	// ConditionProgressing is true while a state of some node is not known yet.
	ConditionProgressing = "Progressing"
)

// AcceleratorStack takes nodes with accelerators from their hardware to claims that work, by states that are checked one after the other on
// each node. A node that fails holds back no other. If several stacks select a node, only the oldest of them holds for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName={accstack,accstacks},categories=fettle
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.driver.engine`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyNodes`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failedNodes`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Why",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Available")].message`
type AcceleratorStack struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is which nodes the stack is for, and where their driver is from.
	Spec AcceleratorStackSpec `json:"spec"`
	// Status is how far the nodes are.
	// +optional
	Status AcceleratorStackStatus `json:"status,omitzero"`
}

// AcceleratorStackList is a list of AcceleratorStacks.
//
// +kubebuilder:object:root=true
type AcceleratorStackList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AcceleratorStack `json:"items"`
}

// AcceleratorStackSpec is which nodes a stack is for, and where their driver is from.
type AcceleratorStackSpec struct {
	// NodeSelector selects nodes by their labels. Unset: all on which Fettle's plugin finds a device.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Driver is where the kernel drivers of the nodes' devices are from.
	Driver StackDriver `json:"driver"`
	// Check is how claims are checked on each node.
	// +optional
	Check *StackCheck `json:"check,omitempty"`
	// Upgrade is how drivers are changed on nodes that run another than the engine is to bring. Engines that only look at drivers change none.
	// +optional
	Upgrade *StackUpgrade `json:"upgrade,omitempty"`
	// States are states of an administrator's own, beside Fettle's.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +optional
	States []ExtraState `json:"states,omitempty"`
}

// StackCheck is how claims are checked on each node. A pod on the node has a claim with admin access, which takes a device from nobody. The
// pod opens the device.
type StackCheck struct {
	// DeviceClassNames are the classes, of each of which a claim is checked on every node. Unset: those of gpu.fettle.dev and
	// fpga.fettle.dev of whose kind the node publishes a device. A node that publishes only parts of GPUs needs their class.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	DeviceClassNames []string `json:"deviceClassNames,omitempty"`
	// Interval is when a check that passed is repeated. One that failed is repeated after ten minutes, or earlier by this. Unset: 24h.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="must be 1m to 720h"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Timeout is how long a check may take, with the pull of its image. Unset: 5m.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('1h')",message="must be 10s to 1h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

func (c *StackCheck) validate(path *field.Path) field.ErrorList {
	at := path.Child("deviceClassNames")
	faults := slices.Concat(atMost(len(c.DeviceClassNames), maxStackClasses, at), validateSet(c.DeviceClassNames, at))
	if c.DeviceClassNames != nil && len(c.DeviceClassNames) == 0 {
		faults = append(faults, emptyList(at))
	}
	for i, name := range c.DeviceClassNames {
		faults = append(faults, objectNameFaults(name, at.Index(i))...)
	}
	faults = append(faults, within(c.Interval, time.Minute, 720*time.Hour, "1m to 720h", path.Child("interval"))...)
	return append(faults, within(c.Timeout, 10*time.Second, time.Hour, "10s to 1h", path.Child("timeout"))...)
}

func within(d *metav1.Duration, least, most time.Duration, text string, path *field.Path) field.ErrorList {
	if d == nil || d.Duration >= least && d.Duration <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d.Duration.String(), "must be "+text)}
}

// DriverEngine is what brings a driver to nodes.
//
// +kubebuilder:validation:Enum=Host;External;DaemonSet;KMM
type DriverEngine string

const (
	// EngineHost: the node's operating system brings the driver, and the stack looks whether it is there.
	EngineHost DriverEngine = "Host"
	// EngineExternal: a vendor's operator brings the driver, and the stack looks at what it reports.
	EngineExternal DriverEngine = "External"
	// EngineDaemonSet: the stack runs the driver's container on its nodes.
	EngineDaemonSet DriverEngine = "DaemonSet"
	// EngineKMM: the operator Kernel Module Management loads the driver, as a Module says that the stack writes.
	EngineKMM DriverEngine = "KMM"
)

func driverEngines() []DriverEngine {
	return []DriverEngine{EngineHost, EngineExternal, EngineDaemonSet, EngineKMM}
}

// StackDriver is where a driver is from.
//
// +kubebuilder:validation:XValidation:rule="has(self.external) == (self.engine == 'External')",message="set external for engine External, and only for it"
// +kubebuilder:validation:XValidation:rule="has(self.daemonSet) == (self.engine == 'DaemonSet')",message="set daemonSet for engine DaemonSet, and only for it"
// +kubebuilder:validation:XValidation:rule="has(self.kmm) == (self.engine == 'KMM')",message="set kmm for engine KMM, and only for it"
type StackDriver struct {
	// Engine is what brings the driver to the nodes. Host: their operating system does. External: a vendor's operator does, which the
	// stack looks at and never changes. DaemonSet: the stack runs the driver's container there. KMM: the operator Kernel Module Management
	// loads it, from a Module that the stack writes.
	Engine DriverEngine `json:"engine"`
	// External is which operator brings the driver.
	// +optional
	External *ExternalDriver `json:"external,omitempty"`
	// DaemonSet is the driver's container.
	// +optional
	DaemonSet *DaemonSetDriver `json:"daemonSet,omitempty"`
	// KMM is what KMM loads.
	// +optional
	KMM *KMMDriver `json:"kmm,omitempty"`
}

// ExternalDriver is which operator brings a driver.
type ExternalDriver struct {
	// Operator is NVIDIAGPUOperator, with a ClusterPolicy or NVIDIADrivers, or AMDGPUOperator, with DeviceConfigs.
	Operator DriverOperator `json:"operator"`
}

// DriverOperator is an operator of a vendor.
//
// +kubebuilder:validation:Enum=NVIDIAGPUOperator;AMDGPUOperator
type DriverOperator string

// The operators.
const (
	OperatorNVIDIA DriverOperator = "NVIDIAGPUOperator"
	OperatorAMD    DriverOperator = "AMDGPUOperator"
)

// Validate reports every fault of the stack's spec below path, those that the CRD's own rules find included.
func (s *AcceleratorStackSpec) Validate(path *field.Path) field.ErrorList {
	faults := validateSelector(s.NodeSelector, path.Child("nodeSelector"))
	faults = append(faults, s.Driver.validate(path.Child("driver"))...)
	if s.Check != nil {
		faults = append(faults, s.Check.validate(path.Child("check"))...)
	}
	if s.Upgrade != nil {
		faults = append(faults, s.Upgrade.validate(path.Child("upgrade"))...)
	}
	return append(faults, validateStates(s.States, path.Child("states"))...)
}

func (d *StackDriver) validate(path *field.Path) field.ErrorList {
	if known := driverEngines(); !slices.Contains(known, d.Engine) {
		return field.ErrorList{field.NotSupported(path.Child("engine"), d.Engine, known)}
	}
	at := path.Child("external")
	if (d.External != nil) != (d.Engine == EngineExternal) {
		return field.ErrorList{field.Required(at, "set it for engine External, and only for it")}
	}
	if (d.DaemonSet != nil) != (d.Engine == EngineDaemonSet) {
		return field.ErrorList{field.Required(path.Child("daemonSet"), "set it for engine DaemonSet, and only for it")}
	}
	if (d.KMM != nil) != (d.Engine == EngineKMM) {
		return field.ErrorList{field.Required(path.Child("kmm"), "set it for engine KMM, and only for it")}
	}
	switch {
	case d.DaemonSet != nil:
		return d.DaemonSet.validate(path.Child("daemonSet"))
	case d.KMM != nil:
		return d.KMM.validate(path.Child("kmm"))
	}
	if d.External == nil {
		return nil
	}
	if known := []DriverOperator{OperatorNVIDIA, OperatorAMD}; !slices.Contains(known, d.External.Operator) {
		return field.ErrorList{field.NotSupported(at.Child("operator"), d.External.Operator, known)}
	}
	return nil
}

// StackState is a state that a node passes on its way.
type StackState string

// The states, in their order. Those of an administrator stand behind or between them.
const (
	// StateFacts: the plugin on the node has reported since the node's last start.
	StateFacts StackState = "Facts"
	// StateDriver: the engine has brought the driver for the kernel that runs.
	StateDriver StackState = "Driver"
	// StateDriverChecked: the plugin finds a working driver for every device.
	StateDriverChecked StackState = "DriverChecked"
	// StatePublished: the API server has the node's devices.
	StatePublished StackState = "Published"
	// StateClaimChecked: a claim of each class was allocated and prepared on the node, and its device was opened.
	StateClaimChecked StackState = "ClaimChecked"
	// StateMonitored: the health of the node's devices is watched.
	StateMonitored StackState = "Monitored"
)

// StackStates are Fettle's states in their order.
func StackStates() []StackState {
	return []StackState{StateFacts, StateDriver, StateDriverChecked, StatePublished, StateClaimChecked, StateMonitored}
}

// AcceleratorStackStatus is how far the nodes of a stack are.
type AcceleratorStackStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes is how many nodes the stack holds for. Selected nodes of an older stack and nodes without any device do not count.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Nodes int32 `json:"nodes"`
	// ReadyNodes is how many of them have passed every state, FailedNodes how many have failed one.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ReadyNodes int32 `json:"readyNodes"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	FailedNodes int32 `json:"failedNodes"`
	// EmptyNodes is how many selected nodes have no device and no trace of one. They count nowhere else.
	// +kubebuilder:validation:Minimum=0
	// +optional
	EmptyNodes int32 `json:"emptyNodes,omitempty"`
	// OverruledNodes is how many selected nodes an older stack holds for.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OverruledNodes int32 `json:"overruledNodes,omitempty"`
	// UpgradingNodes is how many nodes have their driver changed now, those where that is stuck or has failed included.
	// +kubebuilder:validation:Minimum=0
	// +optional
	UpgradingNodes int32 `json:"upgradingNodes,omitempty"`
	// States count the nodes by state, in the order of the states.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	States []StackStateCount `json:"states,omitempty"`
	// Waiting are nodes that have not passed every state, at most 16. Nodes that have failed one come first, and each group is sorted by
	// name.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Waiting []WaitingStackNode `json:"waiting,omitempty"`
	// Conditions are Available, Progressing, Degraded and Overruled.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StackStateCount counts the nodes of a stack in a state. A node counts in each state by itself: one that has passed Published and has
// failed Driver since counts in both.
type StackStateCount struct {
	// Name is the state's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name StackState `json:"name"`
	// Passed, Failed and Unknown are how many nodes have passed the state, have failed it, and of how many it is not known.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Passed int32 `json:"passed"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failed int32 `json:"failed"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Unknown int32 `json:"unknown"`
}

// WaitingStackNode is a node that has not passed every state.
type WaitingStackNode struct {
	// Node is the node's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// State is the first one that the node has failed, or else the first that is not known.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	State StackState `json:"state"`
	// Failed says that the node has failed the state. Otherwise it is not known yet.
	// +optional
	Failed bool `json:"failed,omitempty"`
	// Reason is why, in CamelCase. Message says what was expected and what to do next.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// SetWaiting keeps the first MaxWaitingStackNodes, with texts cut as those of problems are.
func (s *AcceleratorStackStatus) SetWaiting(nodes []WaitingStackNode) {
	s.Waiting = nil
	for _, n := range nodes[:min(len(nodes), MaxWaitingStackNodes)] {
		n.Reason, n.Message = cut(n.Reason, 128), cut(n.Message, 1024)
		s.Waiting = append(s.Waiting, n)
	}
}

// String returns "node a: Driver: MESSAGE" for a condition.
func (n *WaitingStackNode) String() string {
	text := n.Message
	if text == "" {
		text = n.Reason
	}
	return fmt.Sprintf("node %s: %s: %s", n.Node, n.State, text)
}

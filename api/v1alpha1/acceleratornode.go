// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxProblems is how many problems a status keeps. The rest is only counted.
const MaxProblems = 32

// MaxBitstreams is how many files a status lists.
const MaxBitstreams = 256

// MaxNodePresets is how many presets a status lists.
const MaxNodePresets = 256

// MaxNodeCaches is how many caches a status lists.
const MaxNodeCaches = 256

// The condition types of an AcceleratorNode.
const (
	// ConditionReady is true while the plugin on the node serves claims.
	ConditionReady = "Ready"
	// ConditionPublished is true when the API server holds what discovery last found.
	ConditionPublished = "Published"
	// ConditionHealthy is true while nothing is known against any device of the node, and unknown while a source of health is silent.
	ConditionHealthy = "Healthy"
	// ConditionRetired is true once the plugin stopped publishing for good, as an uninstall asks.
	ConditionRetired = "Retired"
	// ConditionQuiesced is true once nothing of Fettle on the node uses the kernel drivers that QuiesceAnnotation names.
	ConditionQuiesced = "Quiesced"
	// ReasonUsedByOthers is the reason of a true Quiesced while other programs of the node still have devices of these drivers open, which its
	// message names.
	ReasonUsedByOthers = "UsedByOthers"
)

const (
	// RetireAnnotation on an AcceleratorNode tells that node's plugin to stop publishing, to refuse new claims, and to remove its files once
	// the last claim is gone.
	RetireAnnotation = GroupName + "/retire"
	// RecoverAnnotation on an AcceleratorNode names devices, separated by commas, or "*", whose faults the plugin must forget. It takes effect
	// once; remove it before the next request.
	RecoverAnnotation = GroupName + "/recover"
	// QuiesceAnnotation on an AcceleratorNode tells that node's plugin to let go of devices while their kernel driver is changed: to stop
	// publishing them, to refuse new claims, and to close them. Claims are released as ever. The value names vendors, separated by commas,
	// or is "*".
	QuiesceAnnotation = GroupName + "/quiesce"
	// QuiesceByUpgrade is the value of QuiesceAnnotation that an upgrade sets, and the only one that it takes back.
	QuiesceByUpgrade = "*"
	// UpgradeAnnotation on an AcceleratorNode says that a stack changes the node's driver: the stack's name, since when the present step
	// lasts, and UpgradeDrain while pods are to go, or UpgradeForce once those that do not go are to be deleted. While it is there, that
	// node's plugin publishes every device with a taint of this key, with the effect NoSchedule, or NoExecute with UpgradeForce. Where the API
	// server keeps no taints, it publishes no device while pods are to go: evicted ones would come back.
	UpgradeAnnotation = GroupName + "/upgrade"
	// UpgradeDrain and UpgradeForce are third words of UpgradeAnnotation.
	UpgradeDrain = "drain"
	UpgradeForce = "force"
	// UpgradeHoldLabel on a Node keeps the driver of that node from being changed by a stack, unless that has begun.
	UpgradeHoldLabel = GroupName + "/upgrade-hold"
	// RetireByUninstall is the value that an uninstall sets and a running controller takes back.
	RetireByUninstall = "true"
	// ClaimDeletedAnnotation on an AcceleratorNode is set by the controller to the time at which it saw that a claim on the node was deleted
	// while it was allocated. That node's plugin then looks for deleted claims that hold devices.
	ClaimDeletedAnnotation = GroupName + "/claim-deleted"
	// WaitingClaimsAnnotation on an AcceleratorNode names claims whose pods are not bound before that node's plugin says that their data is
	// there: "namespace/name", separated by commas, at most 2048 bytes. The controller writes it, so that no node has to watch all claims.
	WaitingClaimsAnnotation = GroupName + "/waiting-claims"
	// RetireByAdmin is the value for an administrator's own use. Neither the controller nor an uninstall removes it.
	RetireByAdmin = "admin"
)

// AcceleratorNode shows what the driver does on one node. Its name is the node's name. That node's plugin writes it, but for status.checks,
// which the controller writes. The controller removes it after the node; nobody sets a spec. It counts claims and never lists them.
// What the plugin writes to its status takes at most 8192 bytes, whatever the node holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName={accnode,accnodes},categories=fettle
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="GPUs",type=string,JSONPath=`.status.summary.gpus`
// +kubebuilder:printcolumn:name="FPGAs",type=string,JSONPath=`.status.summary.fpgas`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.summary.host`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.status.preparedClaims`
// +kubebuilder:printcolumn:name="Problems",type=integer,JSONPath=`.status.problemCount`
// +kubebuilder:printcolumn:name="Drivers",type=string,JSONPath=`.status.summary.drivers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Models",type=string,priority=1,JSONPath=`.status.summary.models`
// +kubebuilder:printcolumn:name="Firmware",type=string,priority=1,JSONPath=`.status.summary.firmware`
// +kubebuilder:printcolumn:name="Plugin",type=string,priority=1,JSONPath=`.status.pluginVersion`
type AcceleratorNode struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Status is the plugin's view of its node.
	// +optional
	Status AcceleratorNodeStatus `json:"status,omitzero"`
}

// AcceleratorNodeList is a list of AcceleratorNodes.
//
// +kubebuilder:object:root=true
type AcceleratorNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AcceleratorNode `json:"items"`
}

// AcceleratorNodeStatus is what the plugin sees and did on its node.
type AcceleratorNodeStatus struct {
	// PluginVersion is the version of the plugin that wrote the status.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	PluginVersion string `json:"pluginVersion,omitempty"`
	// Facts say under which circumstances the status was written. Once they changed, what the status says is not known any more.
	// +optional
	Facts *NodeFacts `json:"facts,omitempty"`
	// Vendors are the makers of the node's devices.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Vendors []VendorStatus `json:"vendors,omitempty"`
	// Pools are the node's pools of devices, one a kind.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// Summary has texts for the columns of kubectl. Programs read vendors and pools.
	// +optional
	Summary *NodeSummary `json:"summary,omitempty"`
	// Problems say why a device is missing, incomplete or not healthy: the first 32 in the order of their subjects.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Problems []NodeProblem `json:"problems,omitempty"`
	// ProblemCount is how many problems there are, listed or not.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ProblemCount int32 `json:"problemCount"`
	// PreparedClaims is how many claims hold devices of this node now.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PreparedClaims int32 `json:"preparedClaims"`
	// Bitstreams are the files that the node has fetched and still holds, by their digests, sorted: the first 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=71
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	// +optional
	Bitstreams []string `json:"bitstreams,omitempty"`
	// Presets are those that claims of this node have something from, sorted by namespace and name, those of the cluster first: the first
	// 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Presets []NodePreset `json:"presets,omitempty"`
	// KernelCaches are those that the node has, fetches or could not get, sorted by namespace, name and digest, those of the cluster first:
	// the first 256. One whose object is gone is listed while claims have it.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	KernelCaches []NodeCache `json:"kernelCaches,omitempty"`
	// PartitionPolicies are those that select the node, sorted by name: the first 32.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	PartitionPolicies []NodePartitionPolicy `json:"partitionPolicies,omitempty"`
	// Rest has in short what the lists have no room for. Then what failed is listed first, and messages are short.
	// +optional
	Rest *NodeRest `json:"rest,omitempty"`
	// Checks are the results of checks of claims on the node, by class. The controller writes them, for AcceleratorStacks.
	// +listType=map
	// +listMapKey=deviceClassName
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Checks []NodeCheck `json:"checks,omitempty"`
	// Conditions are Ready, Published, Healthy, Retired and Quiesced.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeFacts are the circumstances under which a plugin wrote a status.
type NodeFacts struct {
	// BootID is that of the node's kernel. If the Node has another one, the status was written before the node started again.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	BootID string `json:"bootID,omitempty"`
	// BootTime is when the node started, by its own clock. Containers that kubelet started before it belong to an earlier boot.
	// +optional
	BootTime *metav1.Time `json:"bootTime,omitempty"`
	// PluginPod is the UID of the pod of the plugin that wrote the status. Empty: the plugin runs outside a pod.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PluginPod string `json:"pluginPod,omitempty"`
	// WithoutDriver counts the problems, listed or not, by which a device has no driver, another driver, or one that does not answer.
	// +kubebuilder:validation:Minimum=0
	// +optional
	WithoutDriver int32 `json:"withoutDriver"`
}

// NodeSummary has texts for the columns of kubectl, which print only the first of several values.
type NodeSummary struct {
	// GPUs, FPGAs and Host say how many devices of a kind are published, used and free: "8 (3 used, 5 free)", or "0".
	// +kubebuilder:validation:MaxLength=64
	// +optional
	GPUs string `json:"gpus,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	FPGAs string `json:"fpgas,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Host string `json:"host,omitempty"`
	// Drivers are the vendors with the versions of their kernel drivers: "amd 6.12.12, nvidia 580.95.5".
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Drivers string `json:"drivers,omitempty"`
	// Models are the first of the names of the devices' products, each once. Firmware are their firmware versions, and those of FPGAs'
	// shells.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Models string `json:"models,omitempty"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Firmware string `json:"firmware,omitempty"`
}

// SetSummary keeps the texts, cut as those of problems are.
func (s *AcceleratorNodeStatus) SetSummary(summary NodeSummary) {
	summary.Drivers, summary.Models, summary.Firmware = cut(summary.Drivers, 512), cut(summary.Models, 512), cut(summary.Firmware, 512)
	s.Summary = &summary
}

// NodePartitionPolicy is what became of a PartitionPolicy on a node.
type NodePartitionPolicy struct {
	// Name is the policy's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Generation is that of the policy that the node acted on.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Devices is how many devices the policy holds for, Waiting how many of them are not yet as it wants them.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Devices int32 `json:"devices"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Waiting int32 `json:"waiting"`
	// Overruled is how many devices it selects that another policy holds for; By is the policy of the first of them.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Overruled int32 `json:"overruled,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	By string `json:"by,omitempty"`
	// Reason is why the first device waits, or what is wrong with the policy on this node, in CamelCase. Message says what was expected and
	// what to do next.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// MaxNodeChecks is how many results of checks a status has.
const MaxNodeChecks = 16

// NodeCheck is the result of a claim that was allocated, prepared and looked at from a container.
type NodeCheck struct {
	// DeviceClassName is the class of the claim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DeviceClassName string `json:"deviceClassName"`
	// Evidence stands for the boot, kernel, drivers and plugin that the result holds for. With any other the result says nothing.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Evidence string `json:"evidence"`
	// Passed says whether every device of the claim could be opened.
	Passed bool `json:"passed"`
	// Reason is why, in CamelCase. Message says what was expected and what to do next.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// Time is when the check ended.
	Time metav1.Time `json:"time"`
}

// SetChecks keeps the first MaxNodeChecks of a sorted list, with texts cut as those of problems are.
func (s *AcceleratorNodeStatus) SetChecks(checks []NodeCheck) {
	s.Checks = nil
	for _, c := range checks[:min(len(checks), MaxNodeChecks)] {
		c.Reason, c.Message = cut(c.Reason, 128), cut(c.Message, 1024)
		s.Checks = append(s.Checks, c)
	}
}

// MaxNodePolicies is how many PartitionPolicies a status lists.
const MaxNodePolicies = 32

// SetPartitionPolicies keeps the first MaxNodePolicies of a list that is sorted by name, with texts cut as those of problems are.
func (s *AcceleratorNodeStatus) SetPartitionPolicies(policies []NodePartitionPolicy) {
	s.PartitionPolicies = nil
	for _, p := range policies[:min(len(policies), MaxNodePolicies)] {
		p.Reason, p.Message = cut(p.Reason, 128), cut(p.Message, 1024)
		s.PartitionPolicies = append(s.PartitionPolicies, p)
	}
}

// NodePreset is a preset that claims of a node have something from.
type NodePreset struct {
	// Namespace is the DevicePreset's. Empty: it is a ClusterDevicePreset.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the preset's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Claims is how many they are. What a preset gave to a claim stays until the claim goes, even if the preset went before.
	// +kubebuilder:validation:Minimum=1
	Claims int32 `json:"claims"`
}

// VendorStatus counts the devices of one maker.
type VendorStatus struct {
	// Name is the attribute vendor of the devices, such as nvidia.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Devices is how many devices of this maker are published.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Devices int32 `json:"devices"`
	// DriverVersion is the version of the maker's kernel driver. Empty when the driver does not say.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	DriverVersion string `json:"driverVersion,omitempty"`
}

// PoolStatus is one pool of ResourceSlices.
type PoolStatus struct {
	// Name is the pool's name, node/kind.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Name string `json:"name"`
	// Kind is the kind of device, such as gpu.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Devices is how many devices the pool publishes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Devices int32 `json:"devices"`
	// Used counts the devices that claims hold now. Admin access holds no device.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Used int32 `json:"used"`
	// Free is how many published devices a claim could get now: no claim holds them, no taint keeps pods away, and their card has as much
	// left as they take. Parts of one card are all free until one of them is used, so more may be free than can be had together.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Free int32 `json:"free"`
	// Withheld is how many devices the node has and the pool does not publish for now, such as one that is being emptied.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Withheld int32 `json:"withheld"`
	// Unhealthy is how many of the node's devices are degraded, failed or in quarantine. The pool publishes them with the taint
	// fettle.dev/unhealthy, or not at all where the API server drops taints.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Unhealthy int32 `json:"unhealthy"`
	// Generation is the pool's generation in the API server.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Generation int64 `json:"generation"`
	// Published is when the API server last accepted the pool.
	// +optional
	Published *metav1.Time `json:"published,omitempty"`
}

// NodeProblem is one thing that keeps a device from being published in full, or from being given to new claims.
type NodeProblem struct {
	// Subject is the PCI address, host path or device that has the problem.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Subject string `json:"subject"`
	// Reason is the kind of problem, in CamelCase.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// Message says what was expected and what to do next.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
}

// SetProblems keeps the first MaxProblems of a sorted list and counts them all. Texts longer than the schema allows are cut, with
// an ellipsis, so that one hostile device name cannot make the whole status unwritable.
func (s *AcceleratorNodeStatus) SetProblems(problems []NodeProblem) {
	s.ProblemCount = int32(min(len(problems), 1<<31-1))
	s.Problems = nil
	for _, p := range problems[:min(len(problems), MaxProblems)] {
		p.Subject, p.Reason, p.Message = cut(p.Subject, 512), cut(p.Reason, 128), cut(p.Message, 2048)
		s.Problems = append(s.Problems, p)
	}
}

// SetKernelCaches keeps the first MaxNodeCaches of a sorted list, with texts cut as those of problems are.
func (s *AcceleratorNodeStatus) SetKernelCaches(caches []NodeCache) {
	s.KernelCaches = nil
	for _, c := range caches[:min(len(caches), MaxNodeCaches)] {
		c.Message = cut(c.Message, 1024)
		s.KernelCaches = append(s.KernelCaches, c)
	}
}

// cut shortens text to at most limit characters, the unit of a CRD's maxLength.
func cut(text string, limit int) string {
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

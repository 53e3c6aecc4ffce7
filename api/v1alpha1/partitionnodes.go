// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ConditionTainted is true while every node that the policy taints has all of its taints, and pods with devices tolerate these. A policy
// without taints does not have it.
const ConditionTainted = "Tainted"

// ConditionRepelling is true while the taints of the policy keep DaemonSets away from its nodes, or have KMM unload drivers there. A policy
// that taints no node does not have it.
const ConditionRepelling = "Repelling"

// ConditionPriorityClasses is true while all PriorityClasses of the policy are there as it wants them. A policy without any does not have
// it.
const ConditionPriorityClasses = "PriorityClasses"

// ConditionReclaiming is true while pods of a class of the policy may have others evicted. A policy without reclaim: Evict does not have
// it.
const ConditionReclaiming = "Reclaiming"

// TaintsAnnotation is on nodes. It lists the taints that Fettle's controller put there, as KEY=VALUE:EFFECT, sorted and separated by
// commas. The controller takes off what is listed, and nothing else.
const TaintsAnnotation = "fettle.dev/taints"

// NodePartition is who may use the nodes that have devices.
//
// +kubebuilder:validation:XValidation:rule="has(self.taints) || has(self.priorityClasses) || has(self.reclaim)",message="say who may use the nodes: set taints, priorityClasses or reclaim"
type NodePartition struct {
	// Taints keep pods off the selected nodes that have GPUs or FPGAs, unless they get a device of Fettle's or tolerate the taint. They are
	// taken off with the policy. A taint with the same key and effect that somebody else put on a node stays as it is. If it has the same
	// value, too, pods with devices do not tolerate it.
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Taints []NodeTaint `json:"taints,omitempty"`
	// PriorityClasses are made for the whole cluster, whatever nodes are selected, and deleted with the policy. A PriorityClass with the same
	// name that somebody else made stays as it is.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.default) && c.default).size() <= 1",message="at most one class may be the default"
	// +optional
	PriorityClasses []NodePriorityClass `json:"priorityClasses,omitempty"`
	// Reclaim says whether pods that hold devices of the selected nodes make way for a waiting pod with a higher priority that lacks devices,
	// which Kubernetes itself does not do. None: they keep their devices. Evict: as few as needed are evicted, as far as
	// PodDisruptionBudgets allow it, for pods that have one of this policy's priorityClasses and are in one of its reclaimNamespaces. Of
	// policies that select one node, the first that sets it counts. Unset: None, unless another policy sets it.
	// +kubebuilder:validation:Enum=None;Evict
	// +optional
	Reclaim ReclaimMode `json:"reclaim,omitempty"`
}

// ReclaimMode is whether pods that hold devices make way for pods with a higher priority.
type ReclaimMode string

// The modes.
const (
	// ReclaimNone has pods keep their devices.
	ReclaimNone ReclaimMode = "None"
	// ReclaimEvict has pods evicted.
	ReclaimEvict ReclaimMode = "Evict"
)

// NodePriorityClass is a PriorityClass.
type NodePriorityClass struct {
	// Name is the PriorityClass's name. Names that begin with system- are Kubernetes' own.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system-')",message="names that begin with system- are Kubernetes' own"
	Name string `json:"name"`
	// Value is the priority: a pod with a higher one is scheduled first, and preempts pods with a lower one. Kubernetes keeps it as it is, so
	// that another value has the class deleted and made again. Pods keep the priority that they were made with.
	// +kubebuilder:validation:Minimum=-1000000000
	// +kubebuilder:validation:Maximum=1000000000
	Value int32 `json:"value"`
	// Description is for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`
	// ReclaimNamespaces are those whose pods with this class may have others evicted where this policy says reclaim: Evict, or "*" for all.
	// Unset: none. Kubernetes lets pods of every namespace have every class.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	// +optional
	ReclaimNamespaces []string `json:"reclaimNamespaces,omitempty"`
	// Default gives the class to new pods that may get a device of Fettle's and name no class. Unset: false.
	// +optional
	Default bool `json:"default,omitempty"`
}

// Reclaims says whether a policy lets a pod have others evicted, by the pod's namespace, class and priority. The priority alone does not
// count: anybody who makes pods may name any class of the cluster. A pod of a class that had another value has that value's priority, and
// does not count.
func (n *NodePartition) Reclaims(namespace, class string, priority int32) bool {
	return n.Reclaim == ReclaimEvict && slices.ContainsFunc(n.PriorityClasses, func(c NodePriorityClass) bool {
		return c.Name == class && c.Value == priority &&
			(slices.Contains(c.ReclaimNamespaces, namespace) || slices.Contains(c.ReclaimNamespaces, everyNamespace))
	})
}

// NodeTaint is a taint of nodes.
type NodeTaint struct {
	// Key is the taint's key: example.com/gpu. Keys of Kubernetes' own, below kubernetes.io and k8s.io, are refused.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/')",message="keys below kubernetes.io and k8s.io are Kubernetes' own: use a domain of yours"
	Key string `json:"key"`
	// Value is the taint's value. Unset: empty.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`
	// +optional
	Value string `json:"value,omitempty"`
	// Effect is NoSchedule, PreferNoSchedule or NoExecute. NoExecute also ends pods that run on the node already and do not tolerate the
	// taint. Pods with devices that were made before the policy are among them.
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`
}

// String returns the taint as kubectl writes it and as [TaintsAnnotation] lists it: KEY=VALUE:EFFECT.
func (t NodeTaint) String() string { return t.Key + "=" + t.Value + ":" + string(t.Effect) }

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// ConditionTainted is true while every node that the policy taints has all of its taints. A policy without taints does not have it.
const ConditionTainted = "Tainted"

// TaintsAnnotation is on nodes. It lists the taints that Fettle's controller put there, as KEY=VALUE:EFFECT, sorted and separated by
// commas. The controller takes off what is listed, and nothing else.
const TaintsAnnotation = "fettle.dev/taints"

// NodePartition is who may use the nodes that have devices.
//
// +kubebuilder:validation:XValidation:rule="has(self.taints)",message="say who may use the nodes: set taints"
type NodePartition struct {
	// Taints keep pods off the selected nodes that have GPUs or FPGAs, unless they get a device of Fettle's or tolerate the taint. They are
	// taken off with the policy. A taint with the same key and effect that somebody else put on a node stays as it is.
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Taints []NodeTaint `json:"taints,omitempty"`
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
	// taint, those that have devices included, if they were made before the policy.
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`
}

// String returns the taint as kubectl writes it and as [TaintsAnnotation] lists it: KEY=VALUE:EFFECT.
func (t NodeTaint) String() string { return t.Key + "=" + t.Value + ":" + string(t.Effect) }

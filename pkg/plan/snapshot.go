// SPDX-License-Identifier: Apache-2.0

// Package plan says what the scheduler will do with pods that ask for devices. It reads a snapshot of a cluster, gives devices with the
// scheduler's own allocator, and changes nothing.
package plan

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Snapshot has the objects of a cluster that decide which pod gets which devices. The order of objects does not matter, except that of
// pods: what uses a snapshot sorts them.
type Snapshot struct {
	// Version is that of the scheduler, "1.37". If it is empty, the newest that this program knows is meant.
	Version string
	// Gates are the feature gates that differ from the defaults of the version.
	Gates map[string]bool

	Nodes      []*corev1.Node
	Namespaces []*corev1.Namespace
	// Pods are in the order in which the scheduler takes them.
	Pods   []*corev1.Pod
	Quotas []*corev1.ResourceQuota

	Slices     []*resourceapi.ResourceSlice
	Classes    []*resourceapi.DeviceClass
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	TaintRules []*resourceapi.DeviceTaintRule
}

// clone copies a snapshot with its objects.
func (s Snapshot) clone() Snapshot {
	s.Nodes = cloned(s.Nodes)
	s.Namespaces = cloned(s.Namespaces)
	s.Pods = cloned(s.Pods)
	s.Quotas = cloned(s.Quotas)
	s.Slices = cloned(s.Slices)
	s.Classes = cloned(s.Classes)
	s.Claims = cloned(s.Claims)
	s.Templates = cloned(s.Templates)
	s.TaintRules = cloned(s.TaintRules)
	return s
}

func cloned[T interface{ DeepCopy() T }](objects []T) []T {
	out := make([]T, len(objects))
	for i, o := range objects {
		out[i] = o.DeepCopy()
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

// Package change says what a snapshot of a cluster would be if objects were applied or deleted, or a node was drained. What it returns
// shares objects with what it got, and neither is changed.
package change

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// Add returns a snapshot with the objects of another. One of the same kind and name takes the place of the one that was there and, as
// when a manifest is applied, keeps its status, its UID and the node of a pod unless it says another. The version is that of the first. If
// it has none, it is that of the other, whose gates hold where the first says nothing.
func Add(s, more plan.Snapshot) plan.Snapshot {
	if s.Version == "" {
		gates := maps.Clone(more.Gates)
		if gates == nil {
			gates = s.Gates
		}
		maps.Copy(gates, s.Gates)
		s.Version, s.Gates = more.Version, gates
	}
	s.Nodes = merged(s.Nodes, more.Nodes, func(n, before *corev1.Node) {
		if n.Status.Allocatable == nil && n.Status.Capacity == nil {
			n.Status = before.Status
		}
	})
	s.Namespaces = merged(s.Namespaces, more.Namespaces, nil)
	s.Pods = merged(s.Pods, more.Pods, func(p, before *corev1.Pod) {
		if p.Spec.NodeName == "" && p.Status.Phase == "" {
			p.Spec.NodeName, p.Status = before.Spec.NodeName, before.Status
		}
	})
	s.Quotas = merged(s.Quotas, more.Quotas, nil)
	s.Slices = merged(s.Slices, more.Slices, nil)
	s.Classes = merged(s.Classes, more.Classes, nil)
	s.Claims = merged(s.Claims, more.Claims, func(c, before *resourceapi.ResourceClaim) {
		if c.Status.Allocation == nil {
			c.Status = before.Status
		}
	})
	s.Templates = merged(s.Templates, more.Templates, nil)
	s.TaintRules = merged(s.TaintRules, more.TaintRules, nil)
	s.PodGroups = merged(s.PodGroups, more.PodGroups, nil)
	return s
}

// merged returns the objects of both lists. What a later one keeps of an earlier one of the same name is up to the function.
func merged[T interface {
	metav1.Object
	DeepCopy() T
}](objects, more []T, keep func(o, before T)) []T {
	out := slices.Clone(objects)
	for _, o := range more {
		i := slices.IndexFunc(objects, func(before T) bool {
			return before.GetNamespace() == o.GetNamespace() && before.GetName() == o.GetName()
		})
		if i < 0 {
			out = append(out, o)
			continue
		}
		o = o.DeepCopy()
		if o.GetUID() == "" {
			o.SetUID(objects[i].GetUID())
		}
		if keep != nil {
			keep(o, objects[i])
		}
		out[i] = o
	}
	return out
}

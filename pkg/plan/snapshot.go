// SPDX-License-Identifier: Apache-2.0

// Package plan says what the scheduler will do with pods that ask for devices. It reads a snapshot of a cluster, gives devices with the
// scheduler's own allocator, and changes nothing.
package plan

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/plan/equal"
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
	// PodGroups are those that pods name in spec.schedulingGroup.
	PodGroups []*schedulingapi.PodGroup

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
	s.PodGroups = cloned(s.PodGroups)
	s.Slices = equal.Clone(s.Slices)
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

// kind is one that a plan needs.
type kind struct {
	group string
	// versions can be read as the first, because they have the same fields as far as a plan reads them.
	versions   []string
	namespaced bool
	// take adds an object to a snapshot. The first errors are about fields that are not known.
	take func(s *Snapshot, raw []byte, namespace string) ([]error, error)
}

// kinds returns what a plan needs of a cluster, by kind. The versions v1beta2 and v1 of resource.k8s.io are the same for all of them;
// DeviceTaintRules have the same fields in v1alpha3, v1beta2 and v1, and PodGroups in v1alpha3 and
// v1beta1. In v1beta1 requests and devices are nested differently.
func kinds() map[string]kind {
	core, resources := []string{"v1"}, []string{"v1", "v1beta2"}
	return map[string]kind{
		"Node":          {"", core, false, into(func(s *Snapshot) *[]*corev1.Node { return &s.Nodes })},
		"Namespace":     {"", core, false, into(func(s *Snapshot) *[]*corev1.Namespace { return &s.Namespaces })},
		"Pod":           {"", core, true, into(func(s *Snapshot) *[]*corev1.Pod { return &s.Pods })},
		"ResourceQuota": {"", core, true, into(func(s *Snapshot) *[]*corev1.ResourceQuota { return &s.Quotas })},
		"PodGroup": {
			schedulingapi.GroupName,
			[]string{"v1beta1", "v1alpha3"},
			true,
			into(func(s *Snapshot) *[]*schedulingapi.PodGroup { return &s.PodGroups }),
		},
		"ResourceSlice": {
			resourceapi.GroupName, resources, false, into(func(s *Snapshot) *[]*resourceapi.ResourceSlice { return &s.Slices }),
		},
		"DeviceClass": {
			resourceapi.GroupName, resources, false, into(func(s *Snapshot) *[]*resourceapi.DeviceClass { return &s.Classes }),
		},
		"ResourceClaim": {
			resourceapi.GroupName, resources, true, into(func(s *Snapshot) *[]*resourceapi.ResourceClaim { return &s.Claims }),
		},
		"ResourceClaimTemplate": {
			resourceapi.GroupName, resources, true, into(func(s *Snapshot) *[]*resourceapi.ResourceClaimTemplate { return &s.Templates }),
		},
		"DeviceTaintRule": {
			resourceapi.GroupName, append(resources, "v1alpha3"), false,
			into(func(s *Snapshot) *[]*resourceapi.DeviceTaintRule { return &s.TaintRules }),
		},
	}
}

// object is a pointer to a type of objects.
type object[T any] interface {
	*T
	metav1.Object
}

// into adds objects of a type to a list of a snapshot.
func into[T any, P object[T]](list func(s *Snapshot) *[]P) func(s *Snapshot, raw []byte, namespace string) ([]error, error) {
	return func(s *Snapshot, raw []byte, namespace string) ([]error, error) {
		o := P(new(T))
		unknown, err := strictjson.UnmarshalStrict(raw, o)
		if err != nil {
			return nil, err
		}
		o.SetNamespace(namespace)
		o.SetManagedFields(nil)
		*list(s) = append(*list(s), o)
		return unknown, nil
	}
}

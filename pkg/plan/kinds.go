// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"
)

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
// DeviceTaintRules have the same fields in v1alpha3, v1beta2 and v1. In v1beta1 requests and devices are nested differently.
func kinds() map[string]kind {
	core, resources := []string{"v1"}, []string{"v1", "v1beta2"}
	return map[string]kind{
		"Node":          {"", core, false, into(func(s *Snapshot) *[]*corev1.Node { return &s.Nodes })},
		"Namespace":     {"", core, false, into(func(s *Snapshot) *[]*corev1.Namespace { return &s.Namespaces })},
		"Pod":           {"", core, true, into(func(s *Snapshot) *[]*corev1.Pod { return &s.Pods })},
		"ResourceQuota": {"", core, true, into(func(s *Snapshot) *[]*corev1.ResourceQuota { return &s.Quotas })},
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

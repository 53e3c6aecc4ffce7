// SPDX-License-Identifier: Apache-2.0

// Package quota counts devices by namespace and class, as the API server charges them to ResourceQuotas and as the scheduler gave them. It
// reports sums and enforces none: only a ResourceQuota is a limit.
package quota

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

// Report is what was counted. The same objects give the same report.
type Report struct {
	// Namespaces are those with claims, with quotas about devices, or with something that was asked about, sorted.
	Namespaces []Namespace `json:"namespaces"`
	// Asked are the objects that were asked about, in the order in which they are charged.
	Asked []Asked `json:"asked,omitempty"`
	// Problems are objects that were not counted, and why, sorted.
	Problems []plan.Problem `json:"problems,omitempty"`
}

// Namespace is what one namespace has.
type Namespace struct {
	Name string `json:"name"`
	// Claims is the number of its ResourceClaims.
	Claims int64 `json:"claims"`
	// Classes are those that its claims name, sorted.
	Classes []Class `json:"classes,omitempty"`
	// Limits are those of its ResourceQuotas that are about claims and devices, by quota and resource.
	Limits []Limit `json:"limits,omitempty"`
}

// Class is what the claims of one namespace ask of a class, and have of it.
type Class struct {
	Name string `json:"name"`
	// Charged is what claims ask for, as a ResourceQuota counts it.
	Charged int64 `json:"charged"`
	// Devices are allocated for one claim alone, Shares are parts of devices that several claims have, and AdminAccess counts devices that
	// are looked at and not held.
	Devices     int64 `json:"devices"`
	Shares      int64 `json:"shares,omitempty"`
	AdminAccess int64 `json:"adminAccess,omitempty"`
	// Memory is the sum of the memory of those devices and shares, for reports. No object limits it.
	Memory resource.Quantity `json:"memory"`
	// MemoryUnknown counts devices that no ResourceSlice has, or that publish no memory.
	MemoryUnknown int64 `json:"memoryUnknown,omitempty"`
}

// Limit is one resource of a ResourceQuota.
type Limit struct {
	Quota    string              `json:"quota"`
	Resource corev1.ResourceName `json:"resource"`
	Hard     resource.Quantity   `json:"hard"`
	// Used is what the quota's status says. It is missing if the status says nothing.
	Used *resource.Quantity `json:"used,omitempty"`
	// Counted is the same figure, counted from the snapshot.
	Counted resource.Quantity `json:"counted"`
	// After is what would be in use with all that was asked about and not refused.
	After *resource.Quantity `json:"after,omitempty"`
	// Ignored says why the API server does not enforce it.
	Ignored string `json:"ignored,omitempty"`
}

// Asked is what an object would be charged.
type Asked struct {
	// Object is KIND NAMESPACE/NAME.
	Object  string   `json:"object"`
	Charges []Amount `json:"charges"`
	// Refused has the reasons for which the API server would refuse it, one for each ResourceQuota.
	Refused []string `json:"refused,omitempty"`
}

// Amount is so much of a resource.
type Amount struct {
	Resource corev1.ResourceName `json:"resource"`
	Quantity resource.Quantity   `json:"quantity"`
}

// Of counts what the namespaces of a snapshot have, and what the objects of the second snapshot would be charged if they were made now. An
// empty namespace means all. The error is about a version or gates that are not known.
func Of(snapshot, asked *plan.Snapshot, namespace string) (Report, error) {
	set, _, err := gates.For(snapshot.Version, snapshot.Gates)
	if err != nil {
		return Report{}, err
	}
	snapshot, asked = defaulted(snapshot), defaulted(asked)
	c := counter{
		rules: newRules(set, snapshot.Classes), pods: podsByUID(snapshot.Pods), memory: memoryOf(snapshot.Slices),
		namespaces: map[string]*Namespace{}, classes: map[[2]string]*Class{}, charged: map[string]charges{}, limits: map[string][]*limit{},
	}
	of := func(name string) bool { return namespace == "" || namespace == name }
	for _, claim := range snapshot.Claims {
		if of(claim.Namespace) {
			c.claim(claim)
		}
	}
	for _, pod := range snapshot.Pods {
		if of(pod.Namespace) {
			c.charge(pod.Namespace, whole(plan.PodCharge(pod, c.rules.classOf)))
		}
	}
	for _, q := range sorted(snapshot.Quotas) {
		if of(q.Namespace) {
			c.quota(q)
		}
	}
	for _, item := range itemsOf(asked, snapshot, c.rules) {
		if of(item.namespace) {
			c.ask(item)
		}
	}
	return c.report(), nil
}

// defaulted returns a snapshot whose claims, templates and pods have what the API server sets. Those of the argument stay as they are.
func defaulted(s *plan.Snapshot) *plan.Snapshot {
	if s == nil {
		return &plan.Snapshot{}
	}
	changed := plan.Snapshot{Claims: copies(s.Claims), Templates: copies(s.Templates), Pods: copies(s.Pods)}
	plan.SetDefaults(&changed)
	out := *s
	out.Claims, out.Templates, out.Pods = changed.Claims, changed.Templates, changed.Pods
	return &out
}

func copies[T interface{ DeepCopy() T }](objects []T) []T {
	out := make([]T, len(objects))
	for i, o := range objects {
		out[i] = o.DeepCopy()
	}
	return out
}

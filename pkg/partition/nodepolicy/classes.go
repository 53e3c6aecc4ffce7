// SPDX-License-Identifier: Apache-2.0

package nodepolicy

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// Class is a PriorityClass that a policy wants.
type Class struct {
	v1alpha1.NodePriorityClass

	// Policy and UID are the policy's, which owns the PriorityClass.
	Policy string
	UID    types.UID
}

// Classes returns the PriorityClasses that policies want, by name. Of classes with one name, the first policy's counts.
func Classes(policies []v1alpha1.PartitionPolicy) map[string]Class {
	out := map[string]Class{}
	for _, p := range policy.InOrder(policies) {
		if !usable(&p) {
			continue
		}
		for _, c := range p.Spec.Nodes.PriorityClasses {
			if _, taken := out[c.Name]; !taken {
				out[c.Name] = Class{NodePriorityClass: c, Policy: p.Name, UID: p.UID}
			}
		}
	}
	return out
}

// Default returns the name of the PriorityClass that pods with devices get, the first policy's that has one, and nothing if none has.
func Default(policies []v1alpha1.PartitionPolicy) string {
	for _, p := range policy.InOrder(policies) {
		if !usable(&p) {
			continue
		}
		for _, c := range p.Spec.Nodes.PriorityClasses {
			if c.Default {
				return c.Name
			}
		}
	}
	return ""
}

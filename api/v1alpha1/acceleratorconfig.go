// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AcceleratorConfig says how the accelerators of a request are given to the pod. It is the opaque configuration of a ResourceClaim, a
// ResourceClaimTemplate or a DeviceClass. There is nothing to set but the administrator's policy.
type AcceleratorConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Policy is the administrator's: only a DeviceClass may carry it.
	Policy *Policy `json:"policy,omitempty"`
}

// Default fills in what an author may leave out of a configuration that stands alone, which is nothing.
func (c *AcceleratorConfig) Default() {}

// Validate reports every fault of the configuration below path. A policy is a fault unless the configuration is from a class.
func (c *AcceleratorConfig) Validate(fromClass bool, path *field.Path) field.ErrorList {
	if c.Policy == nil {
		return nil
	}
	path = path.Child("policy")
	return append(policyOrigin(fromClass, path), c.Policy.validate(path)...)
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// StackUpgrade is how the drivers of a stack's nodes are changed.
type StackUpgrade struct {
	// MaxUnavailable is how many nodes may have their driver changed at once: a number, or a percentage of the stack's nodes, which is rounded
	// down, but to no less than 1. A node that is stuck or has failed does not count. Unset: 1.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1, or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// DrainTimeout is how long pods with devices of a node may take to go before the node counts as stuck. Unset: 30m.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="must be 1m to 720h"
	// +optional
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// MaxFailed is how many nodes may fail with the new driver. Once more have, no further node begins. Unset: 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxFailed *int32 `json:"maxFailed,omitempty"`
	// Force has pods that still hold devices after drainTimeout deleted, without regard to PodDisruptionBudgets.
	// +optional
	Force bool `json:"force,omitempty"`
	// Paused has no further node begin.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

//nolint:gochecknoglobals // a constant that Go cannot express as such
var percentForm = regexp.MustCompile(`^([1-9][0-9]?|100)%$`)

func (u *StackUpgrade) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	at := path.Child("maxUnavailable")
	if m := u.MaxUnavailable; m != nil {
		if m.Type == intstr.Int && m.IntVal < 1 || m.Type == intstr.String && !percentForm.MatchString(m.StrVal) {
			faults = append(faults, field.Invalid(at, m.String(), "must be a number from 1, or a percentage from 1% to 100%"))
		}
	}
	if u.MaxFailed != nil && *u.MaxFailed < 0 {
		faults = append(faults, field.Invalid(path.Child("maxFailed"), *u.MaxFailed, "must not be negative"))
	}
	return append(faults, within(u.DrainTimeout, time.Minute, 720*time.Hour, "1m to 720h", path.Child("drainTimeout"))...)
}

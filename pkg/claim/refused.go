// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Reason is why a claim is refused, in a form that fits a condition's reason. Reasons are stable.
type Reason string

// The reasons.
const (
	// ReasonNotAllocated: the claim has no allocation yet, so there is nothing to prepare.
	ReasonNotAllocated Reason = "NotAllocated"
	// ReasonConfigInvalid: an opaque configuration is malformed or does not fit its device.
	ReasonConfigInvalid Reason = "ConfigInvalid"
	// ReasonSharingUnsupported: the configuration is well formed and asks for a strategy that the device cannot have, or that no
	// PartitionPolicy allows on it.
	ReasonSharingUnsupported Reason = "SharingUnsupported"
	// ReasonNamespaceNotAllowed: a class of the claim does not allow the claim's namespace.
	ReasonNamespaceNotAllowed Reason = "NamespaceNotAllowed"
	// ReasonForbiddenByPolicy: a class of the claim does not allow what the claim asks of its device.
	ReasonForbiddenByPolicy Reason = "ForbiddenByPolicy"
	// ReasonClassNotFound: the class of a request was deleted after the claim was allocated, so its policy is unknown.
	ReasonClassNotFound Reason = "ClassNotFound"
	// ReasonNotRequested: the allocation has something that the claim's spec does not ask for, so no scheduler made it.
	ReasonNotRequested Reason = "NotRequested"
	// ReasonDeviceUnknown: the allocation names a pool or device that this node does not have.
	ReasonDeviceUnknown Reason = "DeviceUnknown"
	// ReasonDeviceRepeated: the allocation gives a whole device to two requests of the claim.
	ReasonDeviceRepeated Reason = "DeviceRepeated"
)

// RefusedError says that a claim cannot be prepared as it stands. Trying again does not help until the claim, its class or
// the node changes.
type RefusedError struct {
	// Claim is the claim, namespace/name. Empty from Edits, which does not know it.
	Claim  string
	Reason Reason
	// Faults are all independent faults, each with the path of its field in the claim.
	Faults field.ErrorList
}

// Error lists every fault in one line.
func (e *RefusedError) Error() string {
	faults := make([]string, 0, len(e.Faults))
	for _, fault := range e.Faults {
		faults = append(faults, fault.Error())
	}
	what := "resource claim refused"
	if e.Claim != "" {
		what = "resource claim " + e.Claim + " refused"
	}
	return fmt.Sprintf("%s (%s): %s", what, e.Reason, strings.Join(faults, "; "))
}

// Unwrap gives the faults to errors.As and errors.Is.
func (e *RefusedError) Unwrap() []error {
	faults := make([]error, 0, len(e.Faults))
	for _, fault := range e.Faults {
		faults = append(faults, fault)
	}
	return faults
}

// refuse builds the error and drops faults that say the same: one class entry can be wrong for many results.
func refuse(claim *resourceapi.ResourceClaim, reason Reason, faults field.ErrorList) *RefusedError {
	refused := &RefusedError{Claim: claim.Namespace + "/" + claim.Name, Reason: reason}
	seen := map[string]bool{}
	for _, fault := range faults {
		if text := fault.Error(); !seen[text] {
			seen[text] = true
			refused.Faults = append(refused.Faults, fault)
		}
	}
	return refused
}

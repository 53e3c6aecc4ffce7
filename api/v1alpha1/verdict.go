// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/types"

// ImageVerdict is who vouches for a digest.
type ImageVerdict struct {
	// Digest is what was verified.
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// Result is Verified, Skipped where all policies for the image look at nothing, Warned where one that only warns refuses it, or Refused.
	// +kubebuilder:validation:Enum=Verified;Skipped;Warned;Refused
	Result VerdictResult `json:"result"`
	// Policies lists the TrustPolicies that were asked.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Policies []PolicyReference `json:"policies,omitempty"`
	// Signers are who signed it, as far as the policies ask.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=1024
	// +optional
	Signers []string `json:"signers,omitempty"`
	// Formats are the forms of the signatures that counted.
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	// +optional
	Formats []SignatureFormat `json:"formats,omitempty"`
	// Message says why, where it was refused or warned of.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// VerdictResult is Verified, Skipped, Warned or Refused.
type VerdictResult string

// The results.
const (
	VerdictVerified VerdictResult = "Verified"
	VerdictSkipped  VerdictResult = "Skipped"
	VerdictWarned   VerdictResult = "Warned"
	VerdictRefused  VerdictResult = "Refused"
)

// PolicyReference is a TrustPolicy as it was when it was asked.
type PolicyReference struct {
	// Name is the policy's.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID is the policy's: one that was made again under its name is another. Empty: a version before this field wrote the verdict.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Generation is that of its spec.
	Generation int64 `json:"generation"`
	// PublicRoot is the digest of the public trusted root that the policy asked, empty where it asks none.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	PublicRoot string `json:"publicRoot,omitempty"`
}

// Is reports whether the reference is to a policy as it is now. What a version without UIDs wrote is compared by what it has.
func (r PolicyReference) Is(now PolicyReference) bool {
	if r.UID == "" {
		now.UID, now.PublicRoot = "", ""
	}
	return r == now
}

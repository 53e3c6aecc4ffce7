// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindTrustPolicy is the kind of trust policies.
const KindTrustPolicy = "TrustPolicy"

// TrustPolicy says who must have signed an image before nodes use what is in it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=trust,categories=fettle
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Images",type=string,JSONPath=`.status.summary.images`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.status.summary.namespaces`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TrustPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is which images the policy is for, and whose signatures count.
	Spec TrustPolicySpec `json:"spec"`
	// Status is what the controller found out.
	// +optional
	Status TrustPolicyStatus `json:"status,omitzero"`
}

// TrustPolicyList is a list of TrustPolicies.
//
// +kubebuilder:object:root=true
type TrustPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []TrustPolicy `json:"items"`
}

// TrustPolicySpec is which images a policy is for, and whose signatures count. Images are those of kernel caches and of bitstreams. Where
// several policies are for an image, each has to be satisfied. A kernel cache that none is for is refused; a bitstream that none is for
// is refused only where a DeviceClass requires a signature.
//
// +kubebuilder:validation:XValidation:rule="has(self.authorities) || has(self.mode) && self.mode == 'Skip'",message="name at least one authority, or set mode Skip to trust the images whoever made them"
// +kubebuilder:validation:XValidation:rule="!has(self.minSignatures) || !has(self.authorities) || self.authorities.exists(a, has(a.keyless)) || self.minSignatures <= size(self.authorities)",message="minSignatures asks for more signers than there are keys"
type TrustPolicySpec struct {
	// Mode is what becomes of an image that is not signed as the policy wants. Unset: Enforce. An object that refers to the image may be
	// stricter, never more lenient.
	// +optional
	Mode VerificationMode `json:"mode,omitempty"`
	// Images are the repositories that the policy is for, without tag or digest: registry.example/team/cache. * stands for any characters
	// but a slash, ** for any; all of a registry's are registry.example/**. Docker Hub's begin with docker.io,
	// and its own with docker.io/library.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^([a-z0-9.-]*[*][*][a-z0-9.*-]*|(localhost|[a-z0-9.-]*[.*][a-z0-9.*-]*|[a-z0-9.*-]+:(0*[1-9][0-9]*|[*]+))(/[a-z0-9._*-]+)+)$`
	Images []string `json:"images"`
	// Namespaces are those of the objects that refer to the images. Unset: all, and the objects of the cluster too.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// Formats are the forms of signatures that count. Unset: all.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +optional
	Formats []SignatureFormat `json:"formats,omitempty"`
	// MinSignatures is how many different signers there must be; two signatures by one key count once. Unset: 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +optional
	MinSignatures *int32 `json:"minSignatures,omitempty"`
	// Authorities are whose signatures count. One that any of them vouches for is good.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Authorities []TrustAuthority `json:"authorities,omitempty"`
}

// VerificationMode is what becomes of an image that is not signed as a policy wants.
//
// +kubebuilder:validation:Enum=Enforce;Warn;Skip
type VerificationMode string

// The modes, the strictest first.
const (
	// VerificationEnforce refuses the image.
	VerificationEnforce VerificationMode = "Enforce"
	// VerificationWarn tells of it.
	VerificationWarn VerificationMode = "Warn"
	// VerificationSkip does not look.
	VerificationSkip VerificationMode = "Skip"
)

// SignatureFormat is a form that signatures of images have in a registry.
//
// +kubebuilder:validation:Enum=CosignV2;CosignV3
type SignatureFormat string

// The formats.
const (
	// SignatureCosignV2 is a simple signing payload at the tag sha256-HEX.sig.
	SignatureCosignV2 SignatureFormat = "CosignV2"
	// SignatureCosignV3 is a Sigstore bundle among the referrers of the image.
	SignatureCosignV3 SignatureFormat = "CosignV3"
)

// TrustAuthority is somebody whose signatures count: the holder of a key, or those whom an identity provider knows by
// one of the identities.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) != has(self.keyless)",message="set exactly one of key and keyless"
// +kubebuilder:validation:XValidation:rule="!has(self.trustedRoot) || has(self.keyless) || has(self.key) && has(self.key.requireTransparencyLog) && self.key.requireTransparencyLog",message="a key needs a trustedRoot only with requireTransparencyLog"
type TrustAuthority struct {
	// Name is what statuses and messages call the authority.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Key is a public key.
	// +optional
	Key *TrustKey `json:"key,omitempty"`
	// Keyless are people and workflows, each with a certificate for the one signature.
	// +optional
	Keyless *TrustKeyless `json:"keyless,omitempty"`
	// TrustedRoot is the certificate authorities, logs and timestamp authorities to believe, as a Sigstore trusted root in JSON. Unset:
	// the public one that the administrator gave Fettle as a file. Nothing is ever fetched.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	TrustedRoot string `json:"trustedRoot,omitempty"`
}

// TrustKey is a public key.
type TrustKey struct {
	// PEM is one PUBLIC KEY block: ECDSA on P-256, P-384 or P-521, RSA of 2048 bits or more, or Ed25519.
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:Pattern=`^\s*-----BEGIN PUBLIC KEY-----\s`
	PEM string `json:"pem"`
	// RequireTransparencyLog wants the signature in a log of the trusted root. Unset: false.
	// +optional
	RequireTransparencyLog bool `json:"requireTransparencyLog,omitempty"`
}

// TrustKeyless are people and workflows with a certificate for each signature.
type TrustKeyless struct {
	// Identities are who may have signed. Any of them will do.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Identities []TrustIdentity `json:"identities"`
	// RequireTransparencyLog wants the signature in a log of the trusted root. Unset: true. Without, a timestamp authority of the trusted
	// root has to say when the certificate was used.
	// +optional
	RequireTransparencyLog *bool `json:"requireTransparencyLog,omitempty"`
	// RequireSCT wants the certificate in a certificate log of the trusted root. Unset: true.
	// +optional
	RequireSCT *bool `json:"requireSCT,omitempty"`
}

// TrustIdentity is what a certificate says of who signed: who vouches, and for whom.
//
// +kubebuilder:validation:XValidation:rule="has(self.issuer) != has(self.issuerRegExp)",message="set exactly one of issuer and issuerRegExp"
// +kubebuilder:validation:XValidation:rule="has(self.subject) != has(self.subjectRegExp)",message="set exactly one of subject and subjectRegExp"
type TrustIdentity struct {
	// Issuer is the identity provider: https://token.actions.githubusercontent.com.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Issuer string `json:"issuer,omitempty"`
	// IssuerRegExp is a regular expression of RE2 that the whole issuer matches.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!''.matches(self) && !''.matches('^(?:' + self + ')$')",message="must be a regular expression that does not match the empty text: one that does is no condition"
	// +optional
	IssuerRegExp string `json:"issuerRegExp,omitempty"`
	// Subject is the e-mail address or URI of who signed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Subject string `json:"subject,omitempty"`
	// SubjectRegExp is a regular expression of RE2 that the whole subject matches.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!''.matches(self) && !''.matches('^(?:' + self + ')$')",message="must be a regular expression that does not match the empty text: one that does is no condition"
	// +optional
	SubjectRegExp string `json:"subjectRegExp,omitempty"`
}

// TrustPolicyStatus is what the controller found out about a policy.
type TrustPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Summary has texts for the columns of kubectl.
	// +optional
	Summary *TrustSummary `json:"summary,omitempty"`
	// Conditions are Valid: that every key, expression and trusted root can be used.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TrustSummary has texts for the columns of kubectl, which print lists as JSON.
type TrustSummary struct {
	// Images are the first of the repositories that the policy is for, Namespaces the first of the namespaces; "all" if it names none.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Images string `json:"images,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Namespaces string `json:"namespaces,omitempty"`
}

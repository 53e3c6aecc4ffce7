// SPDX-License-Identifier: Apache-2.0

// Package artifacts is the pipeline for objects that name an image in a registry, kernel caches and bitstreams today: it grants the nodes
// the object's pull secrets, asks the registry which digest the image is, has the kind read what is new, has the TrustPolicies judge the
// digest, writes the conditions Resolved and Verified with the rest of the status, and decides when the object is due again.
//
// A kind adds what is its own: where its objects are, how the content is read, and which fields of the status hold it.
package artifacts

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/status"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Artifact is one object on its way through the pipeline: a copy that the pipeline may change.
type Artifact interface {
	// Head returns what all artifacts have.
	Head() Head
	// Read reads the content of a digest that the status does not describe yet, for Record to write.
	Read(ctx context.Context, src *registry.Source, d artifact.Descriptor) error
	// Record writes the answers of the registry and the policies to the status. The pipeline writes the conditions Resolved and Verified.
	Record(r Result)
	// Observe writes to the status what other objects of the cluster report about this one.
	Observe(ctx context.Context, now time.Time) (Observed, error)
}

// Observed is what follows from an observation.
type Observed struct {
	// Again is when to observe again; 0 is when a watched object changes.
	Again time.Duration
	// Admits says that nodes may do more than before.
	Admits bool
}

// Head is the part of an artifact that the pipeline reads.
type Head struct {
	v1alpha1.CommonObject

	// Image is the reference to resolve. It is empty if the content is in no registry.
	Image       string
	PullSecrets []corev1.LocalObjectReference
	// SecretNamespace is where the pull secrets are.
	SecretNamespace string
	// Mode is what the object asks of verification. It counts if it is stricter than a policy.
	Mode v1alpha1.VerificationMode
	// Interval is how often the registry is asked; 0 is as often as for others of the kind.
	Interval time.Duration

	// ObservedGeneration, Digest and Verification are of the status.
	ObservedGeneration int64
	Digest             string
	Verification       *v1alpha1.ImageVerdict
	// Known says that the status describes the content of Digest, and that Image was resolved to it.
	Known      bool
	Conditions *[]metav1.Condition
}

// Grant returns the request for the Role by which the nodes read the pull secrets.
func (h Head) Grant() grant.Request {
	r := grant.Request{Owner: h.Object, Kind: h.Kind, Resource: "secrets", Namespace: h.SecretNamespace}
	for _, secret := range h.PullSecrets {
		r.Names = append(r.Names, secret.Name)
	}
	return r
}

// Applying returns those of the policies that are for the image. An image that is no reference has none.
func (h Head) Applying(all []*trust.Policy) (applying []*trust.Policy) {
	ref, err := artifact.ParseReference(h.Image)
	if err != nil {
		return nil
	}
	for _, p := range all {
		if p.Applies(ref, h.GetNamespace()) {
			applying = append(applying, p)
		}
	}
	return applying
}

// ConcernedBy says whether any version of a policy is for the image, or judged it before.
func (h Head) ConcernedBy(versions []*trust.Policy) bool {
	if len(h.Applying(versions)) > 0 {
		return true
	}
	return h.Verification != nil && slices.ContainsFunc(versions, func(v *trust.Policy) bool {
		return slices.ContainsFunc(h.Verification.Policies, func(p v1alpha1.PolicyReference) bool { return p.Name == v.Name() })
	})
}

// Kind is one pair of kinds of objects that name an image.
type Kind struct {
	// Get reads an object. Only an object of the cluster has no namespace.
	Get func(ctx context.Context, key types.NamespacedName) (Artifact, error)
	// Policies lists the TrustPolicies.
	Policies func(ctx context.Context) ([]*trust.Policy, error)
	// PolicyOptional leaves an image that no policy is for without a verdict. Otherwise such an image is refused.
	PolicyOptional bool
	// ReadTimeout bounds the reading of new content and of signatures.
	ReadTimeout time.Duration
	// Interval is how often the registry is asked.
	Interval time.Duration
	// Action is that of the Events.
	Action string
	// Announced says which other conditions become Events. Resolved and Verified do.
	Announced []status.Rule
}

// unjudged says whether the kind leaves an image without a verdict that only these policies are for.
func (k *Kind) unjudged(policies []*trust.Policy) bool { return k.PolicyOptional && len(policies) == 0 }

// Outcome is what the pipeline found out about an object.
type Outcome struct {
	// Err says why the image is not resolved; Digest counts only without it.
	Err error
	// Digest is what the image is. It is empty if the content is in no registry.
	Digest string
	// Policies are those that are for the image.
	Policies []*trust.Policy
	// Judged is the digest that the policies judged, empty if they did not. Verdict and Refusal are what they said: the refusal, or another
	// error if there is no answer.
	Judged  string
	Verdict trust.Verdict
	Refusal error
	// Unasked: the policies refuse the image whatever its registry says, so the registry was not asked.
	Unasked bool
}

// Result is what a kind writes to the status.
type Result struct {
	// Digest is what the image is, empty if that is not known or the content is in no registry.
	Digest string
	// Kept says that the registry was not available or not asked, so that what the status says of digest and content stays.
	Kept bool
	// Verdict is that of the policies, nil if there is none.
	Verdict *v1alpha1.ImageVerdict
}

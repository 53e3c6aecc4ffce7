// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// The reasons of the condition Resolved that all kinds have. They are stable.
const (
	// ReasonResolved: the registry answered, and the content was read.
	ReasonResolved = "Resolved"
	// ReasonRegistryUnavailable: the registry did not answer. The status keeps its last answer.
	ReasonRegistryUnavailable = "RegistryUnavailable"
	// ReasonNotFound and ReasonUnauthorized: the registry says so.
	ReasonNotFound     = "NotFound"
	ReasonUnauthorized = "Unauthorized"
	// ReasonPullSecretUnavailable: a pull secret is missing, is not one, or may not be read.
	ReasonPullSecretUnavailable = "PullSecretUnavailable"
	// ReasonPlainHTTPRefused: the registry speaks plain http, which the administrator did not allow.
	ReasonPlainHTTPRefused = "PlainHTTPRefused"
	// ReasonDestinationRefused: the registry is at an address that the administrator's rules keep Fettle from contacting.
	ReasonDestinationRefused = "DestinationRefused"
	// ReasonTooLarge: the content is larger than Fettle reads.
	ReasonTooLarge = "TooLarge"
	// ReasonInvalid: the reference or the answer of the registry breaks its specification.
	ReasonInvalid = "Invalid"
	// ReasonHostFile: the content is a file on the nodes, and there is nothing to resolve.
	ReasonHostFile = "HostFile"
)

// Fault is an error of a kind's content that has a reason of its own.
type Fault struct {
	Reason string
	Err    error
}

func (f *Fault) Error() string { return f.Err.Error() }

func (f *Fault) Unwrap() error { return f.Err }

// ReasonOf returns the reason of an error. An error that may pass by itself comes first: if several mirrors were asked, one that did not
// answer may have the image.
func ReasonOf(err error) string {
	var fault *Fault
	switch {
	case errors.As(err, &fault):
		return fault.Reason
	case errors.Is(err, ErrSecret):
		return ReasonPullSecretUnavailable
	case errors.Is(err, artifact.ErrTooLarge):
		return ReasonTooLarge
	case errors.Is(err, artifact.ErrPlainHTTP):
		return ReasonPlainHTTPRefused
	case errors.Is(err, artifact.ErrDestination) && !errors.Is(err, artifact.ErrUnavailable):
		return ReasonDestinationRefused
	case artifact.IsRetryable(err):
		return ReasonRegistryUnavailable
	case errors.Is(err, artifact.ErrUnauthorized):
		return ReasonUnauthorized
	case errors.Is(err, artifact.ErrNotFound):
		return ReasonNotFound
	}
	return ReasonInvalid
}

// firstRetry is how soon an object is tried again after a failure.
const firstRetry = 15 * time.Second

// retryAfter returns when to try an object again whose condition is not true: the wait grows with the age of the condition, so nothing
// else has to be remembered, up to longest. A registry may ask for a longer wait. The interval is the longest of all.
func retryAfter(c *metav1.Condition, longest, interval time.Duration, err error, now time.Time) time.Duration {
	wait := firstRetry
	if c != nil {
		wait = max(wait, min(now.Sub(c.LastTransitionTime.Time), longest))
	}
	return min(max(wait, registry.RetryAfter(err)), interval)
}

// Next returns when an artifact is due again; 0 is when the object or a policy changes. The error is that of the last outcome. What failed
// is tried as often as others of the kind, also if its interval is a day: claims wait for it.
func Next(k *Kind, h Head, err error, now time.Time) time.Duration {
	interval := k.Interval
	if h.Interval > 0 {
		interval = h.Interval
	}
	next, settled := interval, pinned(h) && len(h.PullSecrets) == 0 // otherwise a tag or the right to read a secret may change
	for _, name := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionVerified} {
		if c := meta.FindStatusCondition(*h.Conditions, name); !final(c) {
			settled, next = false, min(next, retryAfter(c, k.Interval, interval, err, now))
		}
	}
	if settled {
		return 0
	}
	return next
}

// final says whether a condition changes only if the object or a policy does.
func final(c *metav1.Condition) bool {
	return c != nil && (c.Status == metav1.ConditionTrue ||
		slices.Contains([]string{ReasonSkipped, ReasonNoTrustPolicy, ReasonTrustPolicyInvalid, ReasonHostFile}, c.Reason))
}

// pinned says whether an artifact names content, which never changes.
func pinned(h Head) bool {
	ref, err := artifact.ParseReference(h.Image)
	return h.Image == "" || err == nil && !ref.Digest().IsZero()
}

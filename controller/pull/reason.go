// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// The reasons of the condition Resolved that all kinds have. They are stable.
const (
	// ReasonResolved: the registry was asked, and what had to be read was read.
	ReasonResolved = "Resolved"
	// ReasonRegistryUnavailable: the registry could not be asked. What it said last is kept.
	ReasonRegistryUnavailable = "RegistryUnavailable"
	// ReasonNotFound and ReasonUnauthorized: the registry says so.
	ReasonNotFound     = "NotFound"
	ReasonUnauthorized = "Unauthorized"
	// ReasonPullSecretUnavailable: a secret is not there, is not one, or may not be read.
	ReasonPullSecretUnavailable = "PullSecretUnavailable"
	// ReasonPlainHTTPRefused: the registry speaks plain http, which the administrator did not allow.
	ReasonPlainHTTPRefused = "PlainHTTPRefused"
	// ReasonTooLarge: it is longer than what is read.
	ReasonTooLarge = "TooLarge"
	// ReasonInvalid: the reference, or what the registry answered, is not what its specification asks for.
	ReasonInvalid = "Invalid"
)

// ReasonOf is the reason for an error. One that may pass by itself is the registry's: where several places were asked, one of them may
// yet have it.
func ReasonOf(err error) string {
	switch {
	case errors.Is(err, ErrSecret):
		return ReasonPullSecretUnavailable
	case errors.Is(err, artifact.ErrTooLarge):
		return ReasonTooLarge
	case errors.Is(err, artifact.ErrPlainHTTP):
		return ReasonPlainHTTPRefused
	case artifact.IsRetryable(err):
		return ReasonRegistryUnavailable
	case errors.Is(err, artifact.ErrUnauthorized):
		return ReasonUnauthorized
	case errors.Is(err, artifact.ErrNotFound):
		return ReasonNotFound
	}
	return ReasonInvalid
}

// firstRetry is how soon an object that is not as it should be is looked at again.
const firstRetry = 15 * time.Second

// Retry says when to look again at an object with a condition that is not true: often at first and more and more seldom, without anything
// but the condition to remember how often. A registry may ask for more, and the interval is the longest.
func Retry(c *metav1.Condition, interval time.Duration, err error, now time.Time) time.Duration {
	wait := firstRetry
	if c != nil {
		wait = max(wait, now.Sub(c.LastTransitionTime.Time))
	}
	return min(max(wait, registry.RetryAfter(err)), interval)
}

// Pinned says whether an image is content, which never changes.
func Pinned(image string) bool {
	ref, err := artifact.ParseReference(image)
	return err == nil && !ref.Digest().IsZero()
}

// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/pull"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

// The reasons of the condition Resolved, beside those of package pull. They are stable.
const (
	// ReasonHostFile: there is nothing to resolve.
	ReasonHostFile = "HostFile"
	// ReasonNotABitstream: the artifact or a file in it is something else.
	ReasonNotABitstream = "NotABitstream"
	// ReasonConfigMismatch: the artifact's config says other things than the bytes.
	ReasonConfigMismatch = "ConfigMismatch"
)

// reasonOf is the reason for an error; what the bytes are counts before how they came.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, pull.ErrSecret):
		return pull.ReasonPullSecretUnavailable
	case errors.Is(err, fpga.ErrContradiction):
		return ReasonConfigMismatch
	case errors.Is(err, oci.ErrNotBitstream):
		return ReasonNotABitstream
	}
	return pull.ReasonOf(err)
}

// Outcome is what one look at an object found.
type Outcome struct {
	// Err says why it is not resolved; the others count only without it.
	Err error
	// Digest is empty for a file on the nodes.
	Digest string
	Images []v1alpha1.BitstreamImage
	// Verdict is on the digest.
	Verdict Verdict
}

// Verdict is whether somebody vouches for a digest.
type Verdict struct {
	Status          metav1.ConditionStatus
	Reason, Message string
}

// Verifier asks the trust policies whether they vouch for a digest.
type Verifier interface {
	Verify(ctx context.Context, ref artifact.Reference, digest artifact.Digest) Verdict
}

// NoTrustPolicy is the Verifier of a cluster without trust policies.
type NoTrustPolicy struct{}

// Verify knows nothing of anybody.
func (NoTrustPolicy) Verify(context.Context, artifact.Reference, artifact.Digest) Verdict {
	return Verdict{Status: metav1.ConditionUnknown, Reason: "NoTrustPolicy", Message: "no TrustPolicy speaks of this image"}
}

// Record writes the outcome into the status. Where the registry could not be asked, what is known of the same spec stays.
func Record(status *v1alpha1.FPGABitstreamStatus, generation int64, out Outcome, now time.Time) {
	resolved := condition(v1alpha1.ConditionResolved, resolution(out), generation, now)
	if resolved.Reason == pull.ReasonRegistryUnavailable && known(status, generation) {
		resolved.Status = metav1.ConditionUnknown
		meta.SetStatusCondition(&status.Conditions, resolved)
		return
	}
	status.ObservedGeneration, status.Digest, status.Images = generation, out.Digest, out.Images
	meta.SetStatusCondition(&status.Conditions, resolved)
	verdict := out.Verdict
	if out.Err != nil {
		status.Digest, status.Images = "", nil
		verdict = Verdict{Status: metav1.ConditionUnknown, Reason: "NotResolved", Message: "there is no digest to vouch for"}
	}
	meta.SetStatusCondition(&status.Conditions, condition(v1alpha1.ConditionVerified, verdict, generation, now))
}

// known says whether the status holds what the spec of this generation meant once.
func known(status *v1alpha1.FPGABitstreamStatus, generation int64) bool {
	return status.ObservedGeneration == generation && status.Digest != "" && len(status.Images) > 0
}

// resolution is the condition Resolved.
func resolution(out Outcome) Verdict {
	switch {
	case out.Err != nil:
		return Verdict{Status: metav1.ConditionFalse, Reason: reasonOf(out.Err), Message: pull.Clip(out.Err.Error(), longestMessage)}
	case out.Digest == "":
		return Verdict{Status: metav1.ConditionTrue, Reason: ReasonHostFile, Message: "the file is read on the nodes"}
	}
	return Verdict{Status: metav1.ConditionTrue, Reason: pull.ReasonResolved, Message: "the reference means " + out.Digest}
}

func condition(kind string, v Verdict, generation int64, now time.Time) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: v.Status, Reason: v.Reason, Message: v.Message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
	}
}

// longestMessage keeps the errors of an index of many manifests readable.
const longestMessage = 1024

// Next says when to look at an object again, and is 0 where nothing but a change of it matters. What is not resolved is tried often at
// first and more and more seldom, without anything but the condition to remember how often.
func Next(o Object, interval time.Duration, err error, now time.Time) time.Duration {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionResolved)
	if c == nil || c.Status != metav1.ConditionTrue {
		return pull.Retry(c, interval, err, now)
	}
	if pinned(o) && len(o.Secrets) == 0 {
		return 0
	}
	return interval // a tag moves, and so may what lets the nodes read the secrets
}

// pinned says whether the spec names content, which never changes.
func pinned(o Object) bool { return o.Spec.Image == "" || pull.Pinned(o.Spec.Image) }

// Settled says whether a registry can only say again what the status says.
func Settled(o Object) bool {
	return o.Status.ObservedGeneration == o.GetGeneration() && pinned(o) &&
		meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionResolved)
}

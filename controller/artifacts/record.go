// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
)

// Record writes an outcome to the status of an artifact. If the registry was not available, what is known of the same image stays.
func Record(k *Kind, a Artifact, out *Outcome, now time.Time) {
	h := a.Head()
	resolved := resolution(h, out)
	kept := h.Known && resolved.Reason == ReasonRegistryUnavailable
	result := Result{Digest: out.Digest, Kept: kept, Verdict: verdictOf(out)}
	switch {
	case kept:
		resolved.Status = metav1.ConditionUnknown
		result.Digest = h.Digest
	case out.Err != nil:
		result.Digest, result.Verdict = "", nil
	}
	if result.Verdict == nil && result.Digest != "" && stands(h, out.Policies, result.Digest) {
		result.Verdict = h.Verification
	}
	a.Record(result)
	SetConditions(h, now, resolved, verification(k, h, out, result))
}

// resolution returns the condition Resolved.
func resolution(h Head, out *Outcome) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue}
	switch {
	case out.Err != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonOf(out.Err), out.Err.Error()
	case h.Image == "":
		c.Reason, c.Message = ReasonHostFile, "the file is read on the nodes"
	default:
		c.Reason, c.Message = ReasonResolved, "the image is "+out.Digest
	}
	return c
}

// verification returns the condition Verified.
func verification(k *Kind, h Head, out *Outcome, r Result) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionUnknown}
	switch {
	case k.Policies != nil:
		return verified(r.Verdict, out.Policies, unanswered(out, r.Kept))
	case r.Digest != "":
		c.Reason, c.Message = ReasonNoTrustPolicy, "no TrustPolicy speaks of this image"
	case h.Image == "" && out.Err == nil:
		c.Reason, c.Message = ReasonHostFile, "no TrustPolicy speaks of files on the nodes"
	default:
		c.Reason, c.Message = ReasonNotResolved, noDigest
	}
	return c
}

// unanswered returns why there is no verdict, nil if there is no digest to judge.
func unanswered(out *Outcome, kept bool) error {
	switch {
	case out.Refusal != nil:
		return out.Refusal
	case kept:
		return out.Err
	}
	return nil
}

// SetConditions writes conditions about the current generation.
func SetConditions(h Head, now time.Time, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = h.GetGeneration(), metav1.NewTime(now)
		c.Message = message.Clip(c.Message, message.ReadableCondition)
		meta.SetStatusCondition(h.Conditions, c)
	}
}

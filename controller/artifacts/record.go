// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// Record writes an outcome to the status of an artifact. If the registry was not available or not asked, what is known of the
// same image stays.
func Record(k *Kind, a Artifact, out *Outcome, now time.Time) {
	h := a.Head()
	resolved := resolution(h, out)
	kept := h.Known && (resolved.Reason == ReasonRegistryUnavailable || out.Unasked)
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
	if !k.unjudged(out.Policies) {
		return verified(r.Verdict, out.Policies, unanswered(out, r.Kept))
	}
	c := metav1.Condition{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionUnknown}
	switch {
	case r.Digest != "":
		c.Reason, c.Message = ReasonNoTrustPolicy, "no TrustPolicy is for this image"
	case h.Image == "" && out.Err == nil:
		c.Reason, c.Message = ReasonHostFile, "files on the nodes have no signatures"
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

// The reasons of the condition Verified. They are stable. If there is no answer, the reason is that of the error.
const (
	// ReasonVerified: every policy for the image is satisfied.
	ReasonVerified = "Verified"
	// ReasonSkipped: all policies for the image have the mode Skip.
	ReasonSkipped = "Skipped"
	// ReasonWarned: a policy that only warns is not satisfied.
	ReasonWarned = "Warned"
	// ReasonRefused: a policy is not satisfied.
	ReasonRefused = "Refused"
	// ReasonNoTrustPolicy: no policy is for the image, which refuses a kernel cache and leaves a bitstream without a verdict.
	ReasonNoTrustPolicy = "NoTrustPolicy"
	// ReasonTrustPolicyInvalid: a policy for the image does not compile, which refuses it.
	ReasonTrustPolicyInvalid = "TrustPolicyInvalid"
	// ReasonNotResolved: there is no digest to verify.
	ReasonNotResolved = "NotResolved"
)

// noDigest is the message of ReasonNotResolved.
const noDigest = "there is no digest to verify"

const (
	// longestVerdict and longestSigner are how long a status's texts may be.
	longestVerdict = 4096
	longestSigner  = 1024
	// maxSigners is how many signers a status lists, maxPolicies how many policies.
	maxSigners  = 32
	maxPolicies = 64
)

// verdictOf returns the verdict of an outcome, nil if the policies gave no answer.
func verdictOf(out *Outcome) *v1alpha1.ImageVerdict {
	if out.Judged == "" || out.Refusal != nil && !errors.Is(out.Refusal, trust.ErrRefused) {
		return nil
	}
	v := &v1alpha1.ImageVerdict{Digest: out.Judged, Policies: references(out.Policies)}
	if out.Refusal != nil {
		v.Result, v.Message = v1alpha1.VerdictRefused, message.Clip(out.Refusal.Error(), longestVerdict)
		return v
	}
	v.Result = out.Verdict.Result()
	if v.Result == v1alpha1.VerdictWarned {
		v.Message = message.Clip(errors.Join(out.Verdict.Warnings...).Error(), longestVerdict)
	}
	for _, result := range out.Verdict.Results {
		for _, s := range result.Signatures {
			v.Signers = append(v.Signers, message.Clip(s.Signer.String(), longestSigner))
			v.Formats = append(v.Formats, s.Format)
		}
	}
	v.Signers, v.Formats = distinct(v.Signers), distinct(v.Formats)
	v.Signers = v.Signers[:min(len(v.Signers), maxSigners)]
	return v
}

func distinct[T ~string](list []T) []T {
	slices.Sort(list)
	return slices.Compact(list)
}

// verified returns the condition Verified for a verdict, which may be an earlier one. Without a verdict, err says why there is none.
func verified(v *v1alpha1.ImageVerdict, policies []*trust.Policy, err error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionUnknown}
	switch {
	case v == nil && err == nil:
		c.Reason, c.Message = ReasonNotResolved, noDigest
	case v == nil && errors.Is(err, trust.ErrRefused):
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, refusalReason(policies), err.Error()
	case v == nil:
		c.Reason, c.Message = ReasonOf(err), err.Error()
	case v.Result == v1alpha1.VerdictVerified:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonVerified
		c.Message = fmt.Sprintf("%s is signed by %s", v.Digest, strings.Join(v.Signers, ", "))
	case v.Result == v1alpha1.VerdictSkipped:
		c.Reason, c.Message = ReasonSkipped, "signatures are not checked: that is the mode of "+names(v.Policies)
	case v.Result == v1alpha1.VerdictWarned:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonWarned, v.Message
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, refusalReason(policies), v.Message
	}
	return c
}

func refusalReason(policies []*trust.Policy) string {
	switch {
	case len(policies) == 0:
		return ReasonNoTrustPolicy
	case slices.ContainsFunc(policies, func(p *trust.Policy) bool { return p.Fault() != nil }):
		return ReasonTrustPolicyInvalid
	}
	return ReasonRefused
}

func names(policies []v1alpha1.PolicyReference) string {
	var list []string
	for _, p := range policies {
		list = append(list, "TrustPolicy "+p.Name)
	}
	return strings.Join(list, ", ")
}

// stands says whether the status has a verdict on the digest by the policies as they are. A verdict that is more lenient than a policy
// that is satisfied counts only for the spec that it was found for, which may ask for more now.
func stands(h Head, policies []*trust.Policy, digest string) bool {
	v := h.Verification
	if v == nil || v.Digest != digest || !h.Known || !slices.EqualFunc(v.Policies, references(policies), v1alpha1.PolicyReference.Is) {
		return false
	}
	return h.ObservedGeneration == h.GetGeneration() || v.Result == v1alpha1.VerdictVerified || v.Result == v1alpha1.VerdictRefused
}

// references returns the first policies, as many as a status lists.
func references(policies []*trust.Policy) (out []v1alpha1.PolicyReference) {
	for _, p := range policies[:min(len(policies), maxPolicies)] {
		asked := v1alpha1.PolicyReference{Name: p.Name(), UID: p.UID(), Generation: p.Generation()}
		if root := p.PublicRoot(); !root.IsZero() {
			asked.PublicRoot = root.String()
		}
		out = append(out, asked)
	}
	return out
}

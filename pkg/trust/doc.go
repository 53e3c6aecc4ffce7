// SPDX-License-Identifier: Apache-2.0

// Package trust verifies who signed an image, by TrustPolicies and without any service but the image's registry.
//
// Signatures are those of cosign: since version 3 a Sigstore bundle among the image's referrers, before that a simple signing payload at
// the tag sha256-HEX.sig. Which one an image has is found out.
//
//	policy := trust.Load(object, publicRoot)
//	verdict, err := trust.Judge(ctx, source, digest, trust.Object{Namespace: namespace}, []*trust.Policy{policy})
//
// What a registry gives is foreign: every byte of it is bounded, compared with its digest, and means nothing until one of a policy's
// authorities vouches for it. What is in it besides, such as whom a signature says to be by, is neither believed nor looked at. Trusted
// roots come as bytes with the policy or from the administrator, and are never fetched.
//
// An error that is ErrRefused is an answer, which asking again does not change. Any other means that there is no answer yet; whether it
// is worth asking again is told by artifact.IsRetryable.
package trust

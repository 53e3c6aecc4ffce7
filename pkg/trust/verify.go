// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// Result is who signed an image, as far as a policy asks.
type Result struct {
	// Policy and Generation are those of the policy that was asked.
	Policy     string
	Generation int64
	// Signatures are as many as the policy wants, each of another signer.
	Signatures []Signature
}

// Signature is one that an authority of the policy vouches for.
type Signature struct {
	Format    v1alpha1.SignatureFormat
	Authority string
	Signer    Signer
	// LogTime is the earliest time that a log or timestamp authority gives, zero where the policy asks for none.
	LogTime time.Time
}

// Signer is a key, or whom an identity provider vouches for. It is comparable.
type Signer struct {
	// KeyID is sha256: and the digest of the public key in DER, in hexadecimal digits.
	KeyID           string
	Issuer, Subject string
}

// String is how people are told of the signer.
func (s Signer) String() string {
	if s.KeyID != "" {
		return "key " + s.KeyID
	}
	return clip(s.Subject) + " of " + clip(s.Issuer)
}

// Verify says who signed the manifest of the digest in the source's repository, or returns an error that says why the policy refuses it.
// It does not look at the policy's mode and namespaces: Judge does.
func Verify(ctx context.Context, src Source, d artifact.Digest, p *Policy) (Result, error) {
	result := Result{Policy: p.name, Generation: p.generation}
	refused := &Refusal{Image: src.Reference().WithDigest(d).String(), Policy: p.name, Generation: p.generation, Wanted: p.min}
	if !p.covers(src.Reference().Repository()) {
		refused.add("", "", fmt.Errorf("the policy is not for this repository: see spec.images"))
		return Result{}, refused
	}
	if p.fault != nil {
		refused.Reasons = append(refused.Reasons, clip(p.fault.Error()))
		return Result{}, refused
	}
	for _, format := range p.formats {
		found := find(ctx, src, d, format)
		for _, f := range found.problems {
			refused.add(string(format), f.name, f.err)
		}
		for _, c := range found.candidates {
			if s, ok := p.ask(c, d, refused); ok {
				result.add(s)
			}
			if len(result.Signatures) >= p.min {
				return result, nil
			}
		}
	}
	refused.Found = result.Signatures
	refused.Tried = p.tried()
	if err := refused.unanswered(ctx); err != nil {
		return Result{}, err
	}
	return Result{}, refused
}

// ask tries the authorities in turn.
func (p *Policy) ask(c *candidate, d artifact.Digest, refused *Refusal) (Signature, bool) {
	for _, a := range p.authorities {
		s, err := a.vouch(c, d)
		if err == nil {
			return s, true
		}
		refused.add(string(c.format), c.name, fmt.Errorf("authority %s%s: %s", a, a.field(err), clip(err.Error())))
	}
	return Signature{}, false
}

func (p *Policy) tried() (names []string) {
	for _, a := range p.authorities {
		names = append(names, a.String())
	}
	return names
}

// add counts a signer once, however often and in how many formats it signed.
func (r *Result) add(s Signature) {
	if !slices.ContainsFunc(r.Signatures, func(other Signature) bool { return other.Signer == s.Signer }) {
		r.Signatures = append(r.Signatures, s)
	}
}

// Verdict is that an image may be used.
type Verdict struct {
	// Results are those of the policies that were satisfied.
	Results []Result
	// Skipped are the policies that let the image pass without a look.
	Skipped []string
	// Warnings are the refusals of policies that only warn.
	Warnings []error
}

// Result sums the verdict up: a warning outweighs signatures, and they outweigh policies that look at none.
func (v *Verdict) Result() v1alpha1.VerdictResult {
	switch {
	case len(v.Warnings) > 0:
		return v1alpha1.VerdictWarned
	case len(v.Results) > 0:
		return v1alpha1.VerdictVerified
	}
	return v1alpha1.VerdictSkipped
}

// Object is the object that names an image.
type Object struct {
	// Namespace is empty for an object of the cluster.
	Namespace string
	// Mode is the mode that the object asks for, or empty. It counts only where it is stricter than a policy's.
	Mode v1alpha1.VerificationMode
}

// Judge asks every policy that is for the image and the object's namespace. Each has to be satisfied, and where there is none the image is
// refused. What signatures there are is not bound to a digest, so a mirror that is behind, or lies, shows others than the registry. So
// nothing is refused or warned of before the registry itself was asked, or every mirror of one that may not be asked.
func Judge(ctx context.Context, src Source, d artifact.Digest, o Object, policies []*Policy) (Verdict, error) {
	verdict, err := judge(ctx, src, d, o, policies)
	if !errors.Is(err, ErrRefused) && len(verdict.Warnings) == 0 {
		return verdict, err
	}
	s, ok := src.(mirrored)
	if !ok {
		return verdict, err
	}
	for direct := s.Direct(); direct != nil; direct = direct.Direct() {
		verdict, err = judge(ctx, direct, d, o, policies)
		if !errors.Is(err, ErrRefused) && len(verdict.Warnings) == 0 {
			break
		}
	}
	return verdict, err
}

// mirrored is a Source that may ask mirrors.
type mirrored interface {
	// Direct returns the source that asks none, or fewer if the registry may not be asked, nil if there is no such.
	Direct() *registry.Source
}

// judge is Judge by what one source shows.
func judge(ctx context.Context, src Source, d artifact.Digest, o Object, policies []*Policy) (Verdict, error) {
	var verdict Verdict
	var errs []error
	applied := false
	for _, p := range policies {
		if !p.Applies(src.Reference(), o.Namespace) {
			continue
		}
		applied = true
		mode := p.mode.Stricter(o.Mode)
		if mode == v1alpha1.VerificationSkip {
			verdict.Skipped = append(verdict.Skipped, p.name)
			continue
		}
		result, err := Verify(ctx, src, d, p)
		switch {
		case err == nil:
			verdict.Results = append(verdict.Results, result)
		case mode == v1alpha1.VerificationWarn && errors.Is(err, ErrRefused):
			verdict.Warnings = append(verdict.Warnings, err)
		default:
			errs = append(errs, err)
		}
	}
	if !applied {
		errs = append(errs, noPolicy(src.Reference().WithDigest(d), o.Namespace))
	}
	if len(errs) > 0 {
		return Verdict{}, errors.Join(errs...)
	}
	return verdict, nil
}

func noPolicy(ref artifact.Reference, namespace string) error {
	object := "objects of the cluster"
	if namespace != "" {
		object = "namespace " + namespace
	}
	return fmt.Errorf("%s is %w: no TrustPolicy is for this repository and %s: make one that names who signs it", ref, ErrRefused, object)
}

// RefuseUnasked returns why Judge will refuse an image whatever its registry says: no policy is for it, or one that is does not compile. If
// it returns nil, the registry has to be asked. It is called first, because a tenant who makes a reference chooses the host.
func RefuseUnasked(ref artifact.Reference, namespace string, policies []*Policy) error {
	var errs []error
	applied := false
	for _, p := range policies {
		if !p.Applies(ref, namespace) {
			continue
		}
		applied = true
		if p.fault != nil {
			errs = append(errs, &Refusal{
				Image: ref.String(), Policy: p.name, Generation: p.generation, Wanted: p.min, Reasons: []string{clip(p.fault.Error())},
			})
		}
	}
	if !applied {
		errs = append(errs, noPolicy(ref, namespace))
	}
	return errors.Join(errs...)
}

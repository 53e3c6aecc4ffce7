// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"github.com/sigstore/sigstore-go/pkg/sign"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// TestVerify has each form of signature in registries with and without a list of referrers.
func TestVerify(t *testing.T) {
	key, w := newSigner(t), newWorld(t)
	byKey := key.authority(t, "release")
	keyless := w.authority(t, v1alpha1.TrustIdentity{Issuer: issuer, SubjectRegExp: `[a-z]+@team\.example`})
	for name, c := range map[string]struct {
		by     v1alpha1.TrustAuthority
		push   func(h *hub, d artifact.Digest)
		format v1alpha1.SignatureFormat
	}{
		"key, bundle": {byKey, func(h *hub, d artifact.Digest) {
			h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
		}, v1alpha1.SignatureCosignV3},
		"key, simple": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, simplePayload(d)))
		}, v1alpha1.SignatureCosignV2},
		"keyless, bundle": {keyless, func(h *hub, d artifact.Digest) {
			h.attach(t, d, bundleJSON(t, w.attest(t, statement(d, signPredicate), 5*time.Minute, false, false)))
		}, v1alpha1.SignatureCosignV3},
		"keyless, bundle of the new log": {keyless, func(h *hub, d artifact.Digest) {
			h.attach(t, d, bundleJSON(t, w.attest(t, statement(d, signPredicate), 5*time.Minute, true, true)))
		}, v1alpha1.SignatureCosignV3},
		"keyless, simple": {keyless, func(h *hub, d artifact.Digest) {
			h.tag(t, d, w.simple(t, simplePayload(d)))
		}, v1alpha1.SignatureCosignV2},
	} {
		for _, referrers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, referrers %t", name, referrers), func(t *testing.T) {
				h := newHub(t, referrers)
				d := h.image(t, "kernels")
				c.push(h, d)
				got, err := Verify(t.Context(), h.source(t), d, compile(t, nil, c.by))
				check.Must(t, err)
				if got.Policy != "kernels" || got.Generation != 7 || len(got.Signatures) != 1 {
					t.Fatalf("got %+v", got)
				}
				s := got.Signatures[0]
				if s.Format != c.format || s.Authority != c.by.Name {
					t.Errorf("got %+v", s)
				}
				if c.by.Key != nil && (!strings.HasPrefix(s.Signer.KeyID, "sha256:") || s.Signer.Issuer != "") {
					t.Errorf("got %+v", s.Signer)
				}
				if c.by.Keyless != nil && (s.Signer != Signer{Issuer: issuer, Subject: subject} || s.LogTime.IsZero()) {
					t.Errorf("got %+v", s)
				}
				// Only the other format counts.
				other := v1alpha1.SignatureCosignV2
				if c.format == other {
					other = v1alpha1.SignatureCosignV3
				}
				_, err = Verify(t.Context(), h.source(t), d, compile(t, func(s *v1alpha1.TrustPolicySpec) {
					s.Formats = []v1alpha1.SignatureFormat{other}
				}, c.by))
				wantRefused(t, err, "the repository has no signature of it", d.String(), "kernels", "generation 7", c.by.Name)
			})
		}
	}
}

// TestJunkHidesNothing: whoever may push to the repository may add signatures without end. That of the maker, which was there first,
// counts.
func TestJunkHidesNothing(t *testing.T) {
	key, other := newSigner(t), newSigner(t)
	h := newHub(t, true)
	d := h.image(t, "kernels")
	all := []layer{key.simple(t, simplePayload(d))}
	for range 2 * maxCandidates {
		all = append(all, other.simple(t, simplePayload(d)))
	}
	h.tag(t, d, all...)
	_, err := Verify(t.Context(), h.source(t), d, compile(t, nil, key.authority(t, "release")))
	check.Must(t, err)
}

// TestRefuses are signatures that are none, or somebody else's.
func TestRefuses(t *testing.T) {
	key, other, w, elsewhere := newSigner(t), newSigner(t), newWorld(t), newWorld(t)
	byKey := key.authority(t, "release")
	exact := v1alpha1.TrustIdentity{Issuer: issuer, Subject: subject}
	byCI := w.authority(t, exact)
	attested := func(change func(b *bundlepb.Bundle)) func(*hub, artifact.Digest) {
		return func(h *hub, d artifact.Digest) {
			b := w.attest(t, statement(d, signPredicate), 5*time.Minute, false, false)
			change(b)
			h.attach(t, d, bundleJSON(t, b))
		}
	}
	asIs := attested(func(*bundlepb.Bundle) {})
	strict := w.authority(t, exact)
	strict.Keyless.RequireSCT = nil
	logged := key.authority(t, "logged")
	logged.Key.RequireTransparencyLog, logged.TrustedRoot = true, string(w.Root(t))
	for name, c := range map[string]struct {
		by    v1alpha1.TrustAuthority
		push  func(h *hub, d artifact.Digest)
		words []string
	}{
		"nothing": {byKey, func(*hub, artifact.Digest) {}, []string{"has no signature of it", "0 of 1 signers", "release (key sha256:"}},
		"bundle of another key": {byKey, func(h *hub, d artifact.Digest) {
			h.attach(t, d, other.bundle(t, statement(d, signPredicate)))
		}, []string{"CosignV3 sha256:", "release", "verify"}},
		"simple of another key": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, other.simple(t, simplePayload(d)))
		}, []string{"CosignV2 sha256:", "release", "verify"}},
		"bundle of another image": {byKey, func(h *hub, d artifact.Digest) {
			h.attach(t, d, key.bundle(t, statement(artifact.DigestOf(nil), signPredicate)))
		}, []string{"digest"}},
		"simple of another image": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, simplePayload(artifact.DigestOf(nil))))
		}, []string{"it is a signature of", artifact.DigestOf(nil).String()}},
		"SBOM": {
			byKey, func(h *hub, d artifact.Digest) { h.attach(t, d, key.bundle(t, statement(d, sbom))) },
			[]string{"is no signature", sbom},
		},
		"keyless SBOM": {byCI, func(h *hub, d artifact.Digest) {
			h.attach(t, d, bundleJSON(t, w.attest(t, statement(d, sbom), 5*time.Minute, false, false)))
		}, []string{"is no signature", sbom}},
		"old statement": {byKey, func(h *hub, d artifact.Digest) {
			old := strings.Replace(string(statement(d, signPredicate)), intotoStatement, "https://in-toto.io/Statement/v0.1", 1)
			h.attach(t, d, key.bundle(t, []byte(old)))
		}, []string{"Statement/v0.1"}},
		"another payload type": {byKey, func(h *hub, d artifact.Digest) {
			b, err := sign.Bundle(&sign.DSSEData{Data: statement(d, signPredicate), PayloadType: "text/plain"}, key, sign.BundleOptions{})
			check.Must(t, err)
			h.attach(t, d, bundleJSON(t, b))
		}, []string{"text/plain"}},
		"message signature": {byKey, func(h *hub, d artifact.Digest) {
			b, err := sign.Bundle(&sign.PlainData{Data: []byte("x")}, key, sign.BundleOptions{})
			check.Must(t, err)
			h.attach(t, d, bundleJSON(t, b))
		}, []string{"no envelope"}},
		"tampered payload": {byKey, func(h *hub, d artifact.Digest) {
			s := key.simple(t, simplePayload(artifact.DigestOf(nil)))
			s.payload = simplePayload(d)
			h.tag(t, d, s)
		}, []string{"verify"}},
		"tampered envelope": {byKey, func(h *hub, d artifact.Digest) {
			was := base64.StdEncoding.EncodeToString(statement(artifact.DigestOf(nil), signPredicate))
			is := base64.StdEncoding.EncodeToString(statement(d, signPredicate))
			h.attach(t, d, []byte(strings.Replace(string(key.bundle(t, statement(artifact.DigestOf(nil), signPredicate))), was, is, 1)))
		}, []string{"verify"}},
		"another type of payload": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, []byte(strings.Replace(string(simplePayload(d)), simpleCritical, "atomic container signature", 1))))
		}, []string{"atomic container signature"}},
		"payload with a key twice": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, []byte(strings.Replace(string(simplePayload(d)), `"optional":null`, `"critical":{}`, 1))))
		}, []string{"duplicate"}},
		"signature that is no base64": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, layer{simplePayload(d), map[string]string{annotationSignature: "%"}})
		}, []string{annotationSignature}},
		"keyless where a key is asked for": {byKey, asIs, []string{"expected key signature"}},
		"key where an identity is asked for": {byCI, func(h *hub, d artifact.Digest) {
			h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
		}, []string{"ci (keyless)"}},
		"simple key where an identity is asked for": {byCI, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, simplePayload(d)))
		}, []string{"ci (keyless)"}},
		"another subject": {w.authority(t, v1alpha1.TrustIdentity{Issuer: issuer, Subject: "somebody@team.example"}), asIs, []string{
			subject, "ci (keyless), keyless.identities: ",
		}},
		"another issuer": {w.authority(t, v1alpha1.TrustIdentity{Issuer: "https://x.example", Subject: subject}), asIs, []string{issuer}},
		"part of a subject": {
			w.authority(t, v1alpha1.TrustIdentity{Issuer: issuer, SubjectRegExp: "builder@team"}), asIs, []string{subject, "builder@team"},
		},
		"part of an issuer": {
			w.authority(t, v1alpha1.TrustIdentity{IssuerRegExp: "issuer", Subject: subject}), asIs, []string{issuer},
		},
		"another world":        {elsewhere.authority(t, exact), asIs, []string{"log", "ci (keyless), trustedRoot: "}},
		"no certificate's log": {strict, asIs, []string{"signed certificate timestamp", "trustedRoot"}},
		"expired": {byCI, func(h *hub, d artifact.Digest) {
			h.attach(t, d, bundleJSON(t, w.attest(t, statement(d, signPredicate), 30*time.Minute, false, false)))
		}, []string{"integrated time outside certificate validity"}},
		"no log entry": {byCI, attested(func(b *bundlepb.Bundle) { b.VerificationMaterial.TlogEntries = nil }), []string{"log"}},
		"log entry of another": {byCI, func(h *hub, d artifact.Digest) {
			b := w.attest(t, statement(d, signPredicate), 5*time.Minute, false, false)
			other := w.attest(t, statement(d, signPredicate), 5*time.Minute, false, false)
			b.VerificationMaterial.TlogEntries = other.VerificationMaterial.TlogEntries
			h.attach(t, d, bundleJSON(t, b))
		}, []string{"transparency log signature does not match"}},
		"33 log entries": {byCI, attested(func(b *bundlepb.Bundle) {
			for range maxCandidates {
				b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, b.VerificationMaterial.TlogEntries[0])
			}
		}), []string{"too many tlog entries: 33 > 32"}},
		"one log entry twice": {byCI, attested(func(b *bundlepb.Bundle) {
			b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, b.VerificationMaterial.TlogEntries[0])
		}), []string{"duplicate tlog entries"}},
		"key outside the log": {logged, func(h *hub, d artifact.Digest) {
			h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
		}, []string{"not enough verified log entries"}},
		"33 bundles": {byKey, func(h *hub, d artifact.Digest) {
			for range maxCandidates + 1 {
				h.attach(t, d, other.bundle(t, statement(d, signPredicate)))
			}
		}, []string{"there are 33 signatures, of which the first 32 were looked at"}},
		"33 simple": {byKey, func(h *hub, d artifact.Digest) {
			var all []layer
			for range maxCandidates + 1 {
				all = append(all, other.simple(t, simplePayload(d)))
			}
			h.tag(t, d, all...)
		}, []string{"there are 33 signatures, of which the first 32 were looked at"}},
		"large bundle": {byKey, func(h *hub, d artifact.Digest) {
			h.attach(t, d, append(key.bundle(t, statement(d, signPredicate)), strings.Repeat(" ", maxBundle)...))
		}, []string{"bytes, expected at most 262144"}},
		"large payload": {byKey, func(h *hub, d artifact.Digest) {
			h.tag(t, d, key.simple(t, append(simplePayload(d), strings.Repeat(" ", maxBundle)...)))
		}, []string{"bytes, expected at most 262144"}},
		"no bundle": {byKey, func(h *hub, d artifact.Digest) { h.attach(t, d, []byte("\x1b[2J<html>")) }, []string{"the bundle is not valid"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, true)
			d := h.image(t, "kernels")
			c.push(h, d)
			got, err := Verify(t.Context(), h.source(t), d, compile(t, nil, c.by))
			if err == nil {
				t.Fatalf("it passed: %+v", got)
			}
			wantRefused(t, err, append(c.words, h.Listener.Addr().String()+"/"+repo+"@"+d.String(), "TrustPolicy kernels", c.by.Name)...)
			if strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 6000 {
				t.Errorf("not fit to be read: %q", err)
			}
		})
	}
}

// TestGoodAmongBad: what others push does not hide a good signature.
func TestGoodAmongBad(t *testing.T) {
	key, other := newSigner(t), newSigner(t)
	h := newHub(t, false)
	d := h.image(t, "kernels")
	h.attach(t, d, []byte("{}"))
	h.attach(t, d, other.bundle(t, statement(d, signPredicate)))
	h.attach(t, d, key.bundle(t, statement(d, sbom)))
	h.tag(t, d, other.simple(t, simplePayload(d)), layer{[]byte("?"), nil}, key.simple(t, simplePayload(d)))
	got, err := Verify(t.Context(), h.source(t), d, compile(t, nil, key.authority(t, "release")))
	check.Must(t, err)
	if len(got.Signatures) != 1 || got.Signatures[0].Format != v1alpha1.SignatureCosignV2 {
		t.Errorf("got %+v", got)
	}
}

// TestMinSignatures counts signers, not signatures.
func TestMinSignatures(t *testing.T) {
	a, b := newSigner(t), newSigner(t)
	two := func(s *v1alpha1.TrustPolicySpec) { n := int32(2); s.MinSignatures = &n }
	p := compile(t, two, a.authority(t, "a"), b.authority(t, "b"), a.authority(t, "again"))
	h := newHub(t, true)
	d := h.image(t, "kernels")
	h.attach(t, d, a.bundle(t, statement(d, signPredicate)))
	h.attach(t, d, a.bundle(t, statement(d, signPredicate)))
	h.tag(t, d, a.simple(t, simplePayload(d)), a.simple(t, simplePayload(d)))
	_, err := Verify(t.Context(), h.source(t), d, p)
	wantRefused(t, err, "1 of 2 signers", "found key sha256:")
	h.tag(t, d, b.simple(t, simplePayload(d)))
	got, err := Verify(t.Context(), h.source(t), d, p)
	check.Must(t, err)
	if len(got.Signatures) != 2 || got.Signatures[0].Authority != "a" || got.Signatures[1].Authority != "b" {
		t.Errorf("got %+v", got)
	}
}

// TestNoAnswer: a registry that is down has refused nobody, and one that refuses us is told of.
func TestNoAnswer(t *testing.T) {
	key := newSigner(t)
	p := compile(t, nil, key.authority(t, "release"))
	for _, path := range []string{"/referrers/", ".sig", "/blobs/"} {
		h := newHub(t, true)
		d := h.image(t, "kernels")
		h.tag(t, d, newSigner(t).simple(t, simplePayload(d)))
		h.fail, h.status = path, 503
		_, err := Verify(t.Context(), h.source(t), d, p)
		if err == nil || errors.Is(err, ErrRefused) || !artifact.IsRetryable(err) || !strings.Contains(err.Error(), "kernels") {
			t.Errorf("%s: got %v", path, err)
		}
		h.status = 403
		_, err = Verify(t.Context(), h.source(t), d, p)
		wantRefused(t, err, "access refused")
		if !errors.Is(err, artifact.ErrUnauthorized) {
			t.Errorf("%s: got %v", path, err)
		}
	}
	h := newHub(t, true)
	d := h.image(t, "kernels")
	h.attach(t, d, key.bundle(t, statement(d, signPredicate)))
	h.fail, h.status = ".sig", 503
	if _, err := Verify(t.Context(), h.source(t), d, p); err != nil {
		t.Errorf("the signature that is there counts: %v", err)
	}
}

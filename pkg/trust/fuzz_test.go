// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// FuzzPayload: a payload counts only for the digest that it names.
func FuzzPayload(f *testing.F) {
	d := artifact.DigestOf([]byte("an image"))
	f.Add(simplePayload(d))
	f.Add(simplePayload(artifact.DigestOf(nil)))
	f.Add([]byte(strings.Replace(string(simplePayload(d)), "null", `{"a":1}`, 1)))
	f.Add([]byte(`{"critical":{"image":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkPayload(data, d) == nil && !strings.Contains(string(data), "critical") {
			t.Errorf("taken: %q", data)
		}
		if checkPayload(data, d) == nil && checkPayload(data, artifact.DigestOf([]byte("another"))) == nil {
			t.Errorf("taken for two images: %q", data)
		}
	})
}

// FuzzSimple: whatever a layer and its annotations say, nobody vouches for what was not signed.
func FuzzSimple(f *testing.F) {
	d := artifact.DigestOf([]byte("an image"))
	w, key := newWorld(f), newSigner(f)
	p := compile(f, nil, newWorld(f).authority(f, v1alpha1.TrustIdentity{Issuer: issuer, Subject: subject}), newSigner(f).authority(f, "key"))
	for _, s := range []layer{w.simple(f, simplePayload(d)), key.simple(f, simplePayload(d))} {
		a := s.annotations
		f.Add(s.payload, a[annotationSignature], a[annotationCertificate], a[annotationLog], `{"SignedRFC3161Timestamp":"MAA="}`)
	}
	f.Fuzz(func(t *testing.T, payload []byte, signature, certificate, entry, stamp string) {
		b, err := simpleBundle(payload, map[string]string{
			annotationSignature: signature, annotationCertificate: certificate, annotationLog: entry, annotationTimestamp: stamp,
		})
		if (b == nil) == (err == nil) {
			t.Fatalf("got %v and %v", b, err)
		}
		if b != nil {
			refuseAll(t, p, &candidate{format: v1alpha1.SignatureCosignV2, bundle: b, payload: payload}, d)
		}
	})
}

// FuzzBundle is the same for bundles.
func FuzzBundle(f *testing.F) {
	d := artifact.DigestOf([]byte("an image"))
	w := newWorld(f)
	p := compile(f, nil, newWorld(f).authority(f, v1alpha1.TrustIdentity{Issuer: issuer, Subject: subject}), newSigner(f).authority(f, "key"))
	f.Add(newSigner(f).bundle(f, statement(d, signPredicate)))
	f.Add(bundleJSON(f, w.attest(f, statement(d, signPredicate), 5*time.Minute, false, true)))
	f.Add(bundleJSON(f, w.attest(f, statement(d, sbom), 5*time.Minute, true, true)))
	f.Add([]byte(`{"mediaType":"` + bundleType + `","verificationMaterial":{"publicKey":{}},"dsseEnvelope":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseBundle(data)
		if (b == nil) == (err == nil) {
			t.Fatalf("got %v and %v", b, err)
		}
		if b != nil {
			refuseAll(t, p, &candidate{format: v1alpha1.SignatureCosignV3, bundle: b}, d)
		}
	})
}

func refuseAll(t *testing.T, p *Policy, c *candidate, d artifact.Digest) {
	t.Helper()
	for _, a := range p.authorities {
		if s, err := a.vouch(c, d); err == nil {
			t.Errorf("%s vouches for it: %+v", a, s)
		}
	}
}

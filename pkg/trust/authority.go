// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// authority is somebody whose signatures count.
type authority struct {
	name string
	// keyID is set for a key.
	keyID    string
	verifier *verify.Verifier
	options  []verify.PolicyOption
}

// String is how messages name the authority.
func (a *authority) String() string {
	if a.keyID != "" {
		return fmt.Sprintf("%s (key %s)", a.name, a.keyID)
	}
	return a.name + " (keyless)"
}

func compileAuthority(from *v1alpha1.TrustAuthority, publicRoot []byte) (*authority, error) {
	a := &authority{name: from.Name}
	if from.Key != nil {
		return a, a.useKey(from, publicRoot)
	}
	return a, a.useIdentities(from, publicRoot)
}

// asksPublic says whether an authority depends on the public root.
func asksPublic(from *v1alpha1.TrustAuthority) bool {
	return from.TrustedRoot == "" && (from.Key == nil || from.Key.RequireTransparencyLog)
}

// trustedRoot reads the authority's own root, or else the public one.
func trustedRoot(own string, public []byte) (root.TrustedMaterial, error) {
	data, which := []byte(own), "trustedRoot"
	if own == "" {
		data, which = public, "the public trusted root"
	}
	if len(data) == 0 {
		return nil, errors.New("it needs a trusted root: set trustedRoot, or give Fettle the public one as a file")
	}
	read, err := root.NewTrustedRootFromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s is not valid: expected a Sigstore trusted root in JSON: %s", which, clip(err.Error()))
	}
	return read, nil
}

// ReadPublicRoot reads the administrator's file with the public trusted root, once. It must be one; no path is none.
func ReadPublicRoot(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the public trusted root: %w", err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("the public trusted root: %s is empty: expected a Sigstore trusted root in JSON", path)
	}
	if _, err := trustedRoot("", data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

func (a *authority) useKey(from *v1alpha1.TrustAuthority, publicRoot []byte) error {
	key, err := from.Key.PublicKey()
	if err != nil {
		return fmt.Errorf("key.pem: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return fmt.Errorf("key.pem: %w", err)
	}
	a.keyID = artifact.DigestOf(der).String()
	verifier, err := keyVerifier(key)
	if err != nil {
		return fmt.Errorf("key.pem: %w", err)
	}
	// Which key it was, a signature may say as it likes; what counts is that it verifies with this one.
	material := root.TrustedMaterialCollection{root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(verifier, time.Time{}, time.Time{}), nil
	})}
	options := []verify.VerifierOption{verify.WithNoObserverTimestamps()}
	if from.Key.RequireTransparencyLog {
		logs, err := trustedRoot(from.TrustedRoot, publicRoot)
		if err != nil {
			return err
		}
		material = append(material, logs)
		options = append(options, verify.WithTransparencyLog(1))
	}
	a.options = []verify.PolicyOption{verify.WithKey()}
	a.verifier, err = verify.NewVerifier(material, options...)
	return err
}

// keyVerifier tries the hash that belongs to the key and, for the larger curves, SHA-256, which cosign used for all of them.
func keyVerifier(key crypto.PublicKey) (signature.Verifier, error) {
	hashes := []crypto.Hash{crypto.SHA256}
	if ec, ok := key.(*ecdsa.PublicKey); ok {
		switch ec.Curve.Params().BitSize {
		case 384:
			hashes = []crypto.Hash{crypto.SHA384, crypto.SHA256}
		case 521:
			hashes = []crypto.Hash{crypto.SHA512, crypto.SHA256}
		}
	}
	all := make(anyVerifier, 0, len(hashes))
	for _, h := range hashes {
		v, err := signature.LoadVerifier(key, h)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// anyVerifier is one key with several hashes.
type anyVerifier []signature.Verifier

func (a anyVerifier) PublicKey(opts ...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return a[0].PublicKey(opts...)
}

func (a anyVerifier) VerifySignature(sig, message io.Reader, opts ...signature.VerifyOption) error {
	sigBytes, err := io.ReadAll(sig)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(message)
	if err != nil {
		return err
	}
	for _, v := range a {
		if err = v.VerifySignature(bytes.NewReader(sigBytes), bytes.NewReader(data), opts...); err == nil {
			return nil
		}
	}
	return err
}

func (a *authority) useIdentities(from *v1alpha1.TrustAuthority, publicRoot []byte) error {
	material, err := trustedRoot(from.TrustedRoot, publicRoot)
	if err != nil {
		return err
	}
	keyless := from.Keyless
	for i, id := range keyless.Identities {
		identity, err := verify.NewShortCertificateIdentity(id.Issuer, whole(id.IssuerRegExp), id.Subject, whole(id.SubjectRegExp))
		if err != nil {
			return fmt.Errorf("keyless.identities[%d]: %w", i, err)
		}
		a.options = append(a.options, verify.WithCertificateIdentity(identity))
	}
	if len(a.options) == 0 {
		return errors.New("keyless.identities is empty: say who may have signed")
	}
	options := []verify.VerifierOption{verify.WithObserverTimestamps(1)}
	if keyless.RequireTransparencyLog == nil || *keyless.RequireTransparencyLog {
		options = append(options, verify.WithTransparencyLog(1))
	}
	if keyless.RequireSCT == nil || *keyless.RequireSCT {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	a.verifier, err = verify.NewVerifier(material, options...)
	return err
}

func whole(expression string) string {
	if expression == "" {
		return ""
	}
	return v1alpha1.WholeRegExp(expression)
}

// vouch verifies one signature of the digest. A panic of the library, which reads foreign bytes in many forms, is a refusal.
func (a *authority) vouch(c *candidate, d artifact.Digest) (s Signature, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = Signature{}, fmt.Errorf("it cannot be read: %v", r)
		}
	}()
	of := verify.WithArtifactDigest("sha256", d[:])
	if c.payload != nil {
		of = verify.WithArtifact(bytes.NewReader(c.payload))
	}
	result, err := a.verifier.Verify(c.bundle, verify.NewPolicy(of, a.options...))
	if err != nil {
		return Signature{}, err
	}
	if err := c.isOf(d, result.Statement); err != nil {
		return Signature{}, err
	}
	s = Signature{Format: c.format, Authority: a.name, Signer: Signer{KeyID: a.keyID}}
	if a.keyID == "" {
		if result.VerifiedIdentity == nil || result.Signature == nil || result.Signature.Certificate == nil {
			return Signature{}, errors.New("it names nobody")
		}
		s.Signer.Issuer, s.Signer.Subject = result.Signature.Certificate.Issuer, result.Signature.Certificate.SubjectAlternativeName
	}
	for _, t := range result.VerifiedTimestamps {
		if s.LogTime.IsZero() || t.Timestamp.Before(s.LogTime) {
			s.LogTime = t.Timestamp.UTC()
		}
	}
	return s, nil
}

// field is the one of the authority by which a signature fails, after a comma: what the library says of a root that does not know a log
// names neither. It is empty where the signature itself is wrong.
func (a *authority) field(err error) string {
	text := err.Error()
	for _, by := range [][2]string{
		{"failed to verify certificate identity", "keyless.identities"},
		{"failed to verify log inclusion", "trustedRoot"},
		{"failed to verify timestamps", "trustedRoot"},
		{"failed to verify leaf certificate", "trustedRoot"},
		{"failed to verify signed certificate timestamp", "trustedRoot"},
	} {
		if strings.HasPrefix(text, by[0]) {
			return ", " + by[1]
		}
	}
	if a.keyID != "" && strings.HasPrefix(text, "failed to verify signature") {
		return ", key"
	}
	return ""
}

// sum is the digest of a payload as a bundle has it.
func sum(data []byte) []byte {
	s := sha256.Sum256(data)
	return s[:]
}

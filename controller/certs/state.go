// SPDX-License-Identifier: Apache-2.0

// Package certs makes, keeps and rotates the webhook's serving certificate; no other controller is needed. Each rotation makes a new
// authority, signs one leaf with it and drops the authority's key, so that no second leaf can be signed. It is not a general authority.
package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// settle is how long a renewed certificate waits before it is served, so that the API server trusts its authority first. It is several
// times the keeper's interval: by then every replica and the reconciler of the bundle have read the new certificate.
const settle = time.Hour

// tokenSize is the number of random bytes of a token.
const tokenSize = 32

// The Secret's keys besides those of the type kubernetes.io/tls.
const (
	keyCA           = "ca.crt" // newest authority first, then the previous one
	keyPrevious     = "previous.crt"
	keyPreviousPriv = "previous.key"
	keyToken        = "token"
)

// State is the content of the Secret: the newest certificate, the previous one while it may still be in use, and both authorities.
type State struct {
	data     map[string][]byte
	current  *tls.Certificate
	previous *tls.Certificate // nil when there is none
}

// Parse reads the Secret's data. Data that cannot be served is an error, and the keeper then replaces it.
func Parse(data map[string][]byte) (*State, error) {
	current, err := load(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("read %s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data[keyCA]) {
		return nil, fmt.Errorf("read %s: expected at least one PEM certificate", keyCA)
	}
	// The signature is checked for a time at which the leaf is valid: an expired certificate is renewed, and is not unreadable.
	_, err = current.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: current.Leaf.NotBefore.Add(time.Second)})
	if err != nil {
		return nil, fmt.Errorf("%s is not signed by %s: %w", corev1.TLSCertKey, keyCA, err)
	}
	s := &State{data: data, current: current}
	if len(data[keyPrevious]) > 0 {
		// If the previous certificate cannot be read, only the current one is served.
		s.previous, err = load(data[keyPrevious], data[keyPreviousPriv])
		if err != nil {
			s.previous = nil
		}
	}
	return s, nil
}

// Token is the last part of the path at which the API server calls the webhook, 64 hexadecimal digits. Only the Secret and the webhook's
// configuration have it, so a request at that path is from the API server, or from a user who may read one of them. It stays when
// certificates are renewed.
func (s *State) Token() string { return string(s.data[keyToken]) }

// Bundle is the PEM of every authority that the API server must trust now.
func (s *State) Bundle() []byte { return bytes.Clone(s.data[keyCA]) }

// Expiry is the end of the newest certificate.
func (s *State) Expiry() time.Time { return s.current.Leaf.NotAfter }

// due says whether a new certificate is needed: two thirds of its life are over, or it is not for these names.
func (s *State) due(now time.Time, names []string) bool {
	if len(s.data[keyToken]) == 0 { // an earlier version made the Secret
		return true
	}
	leaf := s.current.Leaf
	renew := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
	if !now.Before(renew) {
		return true
	}
	for _, name := range names {
		if leaf.VerifyHostname(name) != nil {
			return true
		}
	}
	return false
}

// Serving returns the certificate to present to a caller who knows the server by this name: the previous one until the newest has settled,
// unless that is not for the name.
func (s *State) Serving(now time.Time, name string) *tls.Certificate {
	settled := s.current.Leaf.NotBefore.Add(backdate + settle)
	if s.previous != nil && now.Before(settled) && now.Before(s.previous.Leaf.NotAfter) && s.previous.Leaf.VerifyHostname(name) == nil {
		return s.previous
	}
	return s.current
}

// next returns the Secret's data with a new certificate in front. Before is nil if there was none that could be read.
func next(before *State, now time.Time, names []string) (map[string][]byte, error) {
	if len(names) == 0 {
		return nil, errors.New("make the webhook's certificate: no DNS names given")
	}
	p, err := newPair(now, names)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{corev1.TLSCertKey: p.cert, corev1.TLSPrivateKeyKey: p.key, keyCA: p.ca}
	if before != nil {
		data[keyToken] = before.data[keyToken]
	}
	if len(data[keyToken]) == 0 {
		random := make([]byte, tokenSize)
		_, _ = rand.Read(random) // it never fails
		data[keyToken] = hex.AppendEncode(nil, random)
	}
	if before == nil {
		return data, nil
	}
	data[keyPrevious] = before.data[corev1.TLSCertKey]
	data[keyPreviousPriv] = before.data[corev1.TLSPrivateKeyKey]
	if block, _ := pem.Decode(before.data[keyCA]); block != nil {
		data[keyCA] = append(bytes.Clone(p.ca), pem.EncodeToMemory(block)...)
	}
	return data, nil
}

const (
	// lifetime is how long a leaf and its authority are valid.
	lifetime = 365 * 24 * time.Hour
	// backdate lets an API server whose clock is slow accept a new certificate.
	backdate = time.Hour
)

// pair is a leaf, its key and the authority that signed it, all PEM.
type pair struct {
	cert, key, ca []byte
}

// newPair makes a new authority and a leaf for the names. now starts their validity.
func newPair(now time.Time, names []string) (pair, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	ca, err := template(now, "fettle-controller-ca")
	if err != nil {
		return pair{}, err
	}
	ca.IsCA, ca.BasicConstraintsValid, ca.MaxPathLenZero = true, true, true
	ca.KeyUsage = x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return pair{}, fmt.Errorf("sign the webhook's authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	leaf, err := template(now, names[0])
	if err != nil {
		return pair{}, err
	}
	leaf.DNSNames = names
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return pair{}, fmt.Errorf("sign the webhook's certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		ca:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
	}, nil
}

// template returns the fields that authority and leaf share. Key and serial number distinguish two authorities of one name.
func template(now time.Time, commonName string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime),
	}, nil
}

// load parses a leaf and its key and checks that they belong together.
func load(cert, key []byte) (*tls.Certificate, error) {
	loaded, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	if loaded.Leaf == nil {
		loaded.Leaf, err = x509.ParseCertificate(loaded.Certificate[0])
	}
	return &loaded, err
}

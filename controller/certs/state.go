// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// settle is how long a renewed certificate waits before it is served, so that the API server trusts its authority first. It is several
// times the keeper's interval: by then every replica and the reconciler of the bundle have read the new certificate.
const settle = time.Hour

// The Secret's keys besides those of the type kubernetes.io/tls.
const (
	keyCA           = "ca.crt" // newest authority first, then the previous one
	keyPrevious     = "previous.crt"
	keyPreviousPriv = "previous.key"
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

// Bundle is the PEM of every authority that the API server must trust now.
func (s *State) Bundle() []byte { return bytes.Clone(s.data[keyCA]) }

// Expiry is the end of the newest certificate.
func (s *State) Expiry() time.Time { return s.current.Leaf.NotAfter }

// due says whether a new certificate is needed: two thirds of its life are over, or it is not for these names.
func (s *State) due(now time.Time, names []string) bool {
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

// Serving returns the certificate to present: the previous one until the newest has settled.
func (s *State) Serving(now time.Time) *tls.Certificate {
	settled := s.current.Leaf.NotBefore.Add(backdate + settle)
	if s.previous != nil && now.Before(settled) && now.Before(s.previous.Leaf.NotAfter) {
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

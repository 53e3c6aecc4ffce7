// SPDX-License-Identifier: Apache-2.0

// Package certs makes, keeps and rotates the webhook's serving certificate; no other controller is needed. Each rotation makes a new
// authority, signs one leaf with it and drops the authority's key, so that no second leaf can be signed. It is not a general authority.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

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

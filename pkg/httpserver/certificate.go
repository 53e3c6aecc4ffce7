// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"path/filepath"
	"time"
)

// selfSignedLife is how long a certificate of [TLS] without a directory is valid. Each start of the process makes a new one.
const selfSignedLife = 10 * 365 * 24 * time.Hour

// TLS returns the settings of a server whose certificate is in tls.crt and tls.key of a directory, where it may be renewed at any time.
// Without a directory the server has a certificate that it signed itself: the connection is encrypted, and clients cannot tell the server
// from another.
func TLS(dir string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if dir == "" {
		certificate, err := selfSigned(time.Now())
		if err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		return &certificate, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("read the certificate of metrics: %w", err)
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}

func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "fettle-metrics"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

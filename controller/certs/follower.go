// SPDX-License-Identifier: Apache-2.0

// Package certs reads the webhook's serving certificate and the secret of its path, which the chart makes and mounts, and reads them again
// when they change. It makes none: no program of Fettle may write them.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// interval is the time between two reads of the files; kubelet renews a mounted Secret within about a minute.
	interval = 10 * time.Second
	// minToken is the shortest token that is no mistake.
	minToken = 32
)

// The files.
const (
	certFile  = "tls.crt"
	keyFile   = "tls.key"
	tokenFile = "token"
)

var errNoCertificate = errors.New("no webhook certificate yet: see the log for why its files cannot be read")

// state is what was read.
type state struct {
	certificate *tls.Certificate
	token       string
}

// Follower reads the certificate and the token from files.
type Follower struct {
	// Files is the directory with tls.crt, tls.key and token.
	Files fs.FS
	// Clock is the time.
	Clock clock.WithTicker
	// Changed, if set, is called with the end of a certificate that was read.
	Changed func(expiry time.Time)

	state atomic.Pointer[state]
}

// Run reads the files again and again until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for {
		if err := f.Sync(); err != nil {
			klog.FromContext(ctx).Error(err, "Read the webhook certificate; the one before is served, if there was one")
		}
		select {
		case <-ctx.Done():
			return
		case <-f.Clock.After(interval):
		}
	}
}

// Sync reads the files once. What was read before stays if that fails, as between two renewed files.
func (f *Follower) Sync() error {
	read, err := load(f.Files)
	if err != nil {
		return err
	}
	f.state.Store(read)
	if f.Changed != nil {
		f.Changed(read.certificate.Leaf.NotAfter)
	}
	return nil
}

// load reads a certificate, its key and the token.
func load(files fs.FS) (*state, error) {
	content := map[string][]byte{}
	for _, name := range []string{certFile, keyFile, tokenFile} {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read the webhook's certificate: %w", err)
		}
		content[name] = data
	}
	pair, err := tls.X509KeyPair(content[certFile], content[keyFile])
	if err != nil {
		return nil, fmt.Errorf("read %s and %s: %w", certFile, keyFile, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("read %s: %w", certFile, err)
		}
	}
	token := strings.TrimSpace(string(content[tokenFile]))
	if len(token) < minToken {
		return nil, fmt.Errorf("read %s: expected at least %d characters, got %d", tokenFile, minToken, len(token))
	}
	return &state{certificate: &pair, token: token}, nil
}

// Token is the last part of the path at which the API server calls the webhook, empty before the first success. Only the Secret and the
// webhook's configurations have it, so a request at that path is from the API server, or from a user who may read one of them.
func (f *Follower) Token() string {
	if read := f.state.Load(); read != nil {
		return read.token
	}
	return ""
}

// GetCertificate implements the function of [tls.Config]: each handshake gets the certificate that was read last.
func (f *Follower) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if read := f.state.Load(); read != nil {
		return read.certificate, nil
	}
	return nil, errNoCertificate
}

// Ready is a readiness check: it fails until there is a certificate.
func (f *Follower) Ready() error {
	if f.state.Load() == nil {
		return errNoCertificate
	}
	return nil
}

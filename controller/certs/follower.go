// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// followInterval is the time between two reads by a follower. After a new Secret was made, the API server may get a certificate that it
// does not trust, for at most this time.
const followInterval = 30 * time.Second

var errNoCertificate = errors.New("no webhook certificate yet: the controller makes it; see the log for why its Secret cannot be read")

// Follower reads the certificate that the [Keeper] of another process keeps. It never writes.
type Follower struct {
	// Client reads the Secret; it must not read from a cache.
	Client client.Reader
	// Secret is where the certificate is kept.
	Secret client.ObjectKey
	// Name is the DNS name by which the API server calls.
	Name string
	// Clock is the time.
	Clock clock.WithTicker

	state atomic.Pointer[State]
}

// Run reads the Secret again and again until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for {
		wait := followInterval
		if err := f.Sync(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			klog.FromContext(ctx).Info("Waiting for the webhook certificate", "reason", err.Error())
			wait = retry
		}
		select {
		case <-ctx.Done():
			return
		case <-f.Clock.After(wait):
		}
	}
}

// Sync reads the Secret once. A certificate that was read before stays if that fails.
func (f *Follower) Sync(ctx context.Context) error {
	var secret corev1.Secret
	if err := f.Client.Get(ctx, f.Secret, &secret); err != nil {
		return fmt.Errorf("read Secret %s: %w", f.Secret, err)
	}
	state, err := Parse(secret.Data)
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", f.Secret, err)
	}
	f.state.Store(state)
	return nil
}

// State returns the last state that was read, nil before the first success.
func (f *Follower) State() *State { return f.state.Load() }

// GetCertificate implements the function of [tls.Config]: each handshake gets the certificate that is to be served at its time.
func (f *Follower) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	state := f.state.Load()
	if state == nil {
		return nil, errNoCertificate
	}
	return state.Serving(f.Clock.Now(), f.Name), nil
}

// Ready is a readiness check: it fails until there is a certificate.
func (f *Follower) Ready() error {
	if f.state.Load() == nil {
		return errNoCertificate
	}
	return nil
}

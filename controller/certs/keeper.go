// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	interval = 10 * time.Minute // between two reads of the Secret
	retry    = 5 * time.Second  // after a failure
	attempts = 5                // against other replicas that write the Secret at the same time
)

// Keeper makes and renews the certificate in its Secret, and holds it in memory. The leader of the controllers runs one. If two run at the
// same time, the first to write creates or renews, and the other loses the race on the Secret and reads it again.
type Keeper struct {
	// Client reads and writes the Secret; it must not read from a cache.
	Client client.Client
	// Secret is where the certificate is kept.
	Secret client.ObjectKey
	// Names are the DNS names that the certificate is for.
	Names []string
	// Clock is the time.
	Clock clock.WithTicker
	// Changed, if set, is called when the authorities or the token changed. It must not block.
	Changed func(*State)

	state atomic.Pointer[State]
}

// Start keeps the certificate until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	for {
		wait := interval
		if err := k.Sync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped, not failed
			}
			klog.FromContext(ctx).Error(err, "Keep the webhook certificate", "secret", k.Secret)
			wait = retry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.Clock.After(wait):
		}
	}
}

// Sync reads the certificate from its Secret, and renews it if it is missing, unreadable or due.
func (k *Keeper) Sync(ctx context.Context) error {
	for range attempts {
		state, err := k.ensure(ctx)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keep Secret %s: %w", k.Secret, err)
		}
		before := k.state.Swap(state)
		if k.Changed != nil && (before == nil || string(before.Bundle()) != string(state.Bundle()) || before.Token() != state.Token()) {
			k.Changed(state)
		}
		return nil
	}
	return fmt.Errorf("keep Secret %s: another replica was faster %d times in a row", k.Secret, attempts)
}

// ensure makes one attempt. It returns a conflict if another replica was faster.
func (k *Keeper) ensure(ctx context.Context) (*State, error) {
	var secret corev1.Secret
	err := k.Client.Get(ctx, k.Secret, &secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	exists := err == nil
	state, unreadable := Parse(secret.Data)
	if unreadable == nil && !state.due(k.Clock.Now(), k.Names) {
		return state, nil
	}
	if unreadable != nil && exists {
		klog.FromContext(ctx).Info("Replacing a webhook certificate that cannot be used", "secret", k.Secret, "reason", unreadable)
	}
	data, err := next(state, k.Clock.Now(), k.Names)
	if err != nil {
		return nil, err
	}
	secret.Data = data
	if exists {
		err = k.Client.Update(ctx, &secret)
	} else {
		secret.ObjectMeta = metav1.ObjectMeta{Name: k.Secret.Name, Namespace: k.Secret.Namespace}
		secret.Type = corev1.SecretTypeTLS
		err = k.Client.Create(ctx, &secret)
	}
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// State returns the last state that was read, nil before the first success.
func (k *Keeper) State() *State { return k.state.Load() }

// Inject sets the caBundle and the path of every webhook that calls the Service, and returns whether anything changed. It leaves webhooks
// that call another address as they are.
func Inject(webhooks []*admissionregistrationv1.WebhookClientConfig, namespace, service, path string, bundle []byte) bool {
	changed := false
	for _, target := range webhooks {
		if target.Service == nil || target.Service.Namespace != namespace || target.Service.Name != service ||
			bytes.Equal(target.CABundle, bundle) && ptr.Deref(target.Service.Path, "") == path {
			continue
		}
		target.CABundle, target.Service.Path = bytes.Clone(bundle), &path
		changed = true
	}
	return changed
}

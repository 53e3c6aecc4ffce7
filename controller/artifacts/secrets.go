// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/pkg/pullsecret"
)

// ErrSecret marks a pull secret that cannot be used. The object is at fault. Any other error is trouble with the API server, which passes.
var ErrSecret = pullsecret.ErrUnusable

// credentials reads the pull secrets of a request. Live must not read from a cache: the controller may not list Secrets.
func credentials(ctx context.Context, live client.Reader, r grant.Request) (authn.Keychain, error) {
	keys, err := pullsecret.Read(ctx, func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
		var secret corev1.Secret
		return &secret, live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret)
	}, r.Namespace, r.Names)
	if err != nil {
		return nil, err // not the nil *registry.Keychain
	}
	return keys, nil
}

// grant brings an object's Role to the secrets that it names: none if it names none. A spec that changed may have named some until now.
func (r Resolver) grant(ctx context.Context, h Head) error {
	var err error
	request := h.Grant()
	switch {
	case len(request.Names) > 0:
		err = r.grants.Ensure(ctx, request)
	case h.ObservedGeneration != h.GetGeneration():
		err = r.grants.Revoke(ctx, request)
	}
	switch {
	case apierrors.IsForbidden(err):
		return forbidden(request.Namespace)
	case errors.Is(err, grant.ErrForeign):
		return fmt.Errorf("%w: %w", ErrSecret, err)
	}
	return err
}

func forbidden(namespace string) error {
	return fmt.Errorf("%w: the controller may not read Secrets of namespace %s, or not grant that to the nodes; an administrator adds it to "+
		"bitstreams.pullSecretNamespaces of the chart", ErrSecret, namespace)
}

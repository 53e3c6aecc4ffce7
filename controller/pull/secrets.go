// SPDX-License-Identifier: Apache-2.0

package pull

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

// ErrSecret: a pull secret cannot be had. It is a fault of the object; any other error is trouble with the API server.
var ErrSecret = pullsecret.ErrUnusable

// Names are those of references to secrets.
func Names(references []corev1.LocalObjectReference) []string {
	var list []string
	for _, r := range references {
		list = append(list, r.Name)
	}
	return list
}

// Keys reads the pull secrets of a namespace. Live must not read from a cache; the controller may not list Secrets.
func Keys(ctx context.Context, live client.Reader, namespace string, names []string) (authn.Keychain, error) {
	keys, err := pullsecret.Read(ctx, func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
		var secret corev1.Secret
		return &secret, live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret)
	}, namespace, names)
	if err != nil {
		return nil, err // not the nil *registry.Keychain
	}
	return keys, nil
}

// Grant brings an object's Role to the secrets that it names: none where it names none. Changed says that its spec may have named some
// until now.
func Grant(ctx context.Context, grants grant.Writer, r grant.Request, changed bool) error {
	var err error
	switch {
	case len(r.Names) > 0:
		err = grants.Ensure(ctx, r)
	case changed:
		err = grants.Revoke(ctx, r)
	}
	switch {
	case apierrors.IsForbidden(err):
		return forbidden(r.Namespace)
	case errors.Is(err, grant.ErrForeign):
		return fmt.Errorf("%w: %w", ErrSecret, err)
	}
	return err
}

func forbidden(namespace string) error {
	return fmt.Errorf("%w: the controller may not read Secrets of namespace %s, or not grant that to the nodes; an administrator adds it to "+
		"bitstreams.pullSecretNamespaces of the chart", ErrSecret, namespace)
}

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
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// ErrSecret: a pull secret cannot be had. It is a fault of the object; any other error is trouble with the API server.
var ErrSecret = errors.New("the pull secrets cannot be used")

// credentials reads the pull secrets of a request. Without any there are no credentials, and that is no error. Live must not read from a
// cache: the controller may not list Secrets.
func credentials(ctx context.Context, live client.Reader, r grant.Request) (authn.Keychain, error) {
	if len(r.Names) == 0 {
		return nil, nil //nolint:nilnil // anonymous is a good answer
	}
	contents := make([][]byte, 0, len(r.Names))
	for _, name := range r.Names {
		var secret corev1.Secret
		if err := live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, &secret); err != nil {
			return nil, secretFault(r.Namespace, name, err)
		}
		if secret.Type != corev1.SecretTypeDockerConfigJson {
			return nil, fmt.Errorf("%w: Secret %s/%s is of type %s, expected %s", ErrSecret, r.Namespace, name, secret.Type,
				corev1.SecretTypeDockerConfigJson)
		}
		contents = append(contents, secret.Data[corev1.DockerConfigJsonKey])
	}
	keys, err := artifact.Credentials(contents...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSecret, err)
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

// secretFault says what to do about a secret that cannot be read. Trouble with the API server passes and is no fault of the object.
func secretFault(namespace, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: there is no Secret %s in namespace %s", ErrSecret, name, namespace)
	case apierrors.IsForbidden(err):
		return forbidden(namespace)
	}
	return fmt.Errorf("read Secret %s/%s: %w", namespace, name, err)
}

func forbidden(namespace string) error {
	return fmt.Errorf("%w: the controller may not read Secrets of namespace %s, or not grant that to the nodes; an administrator adds it to "+
		"bitstreams.pullSecretNamespaces of the chart", ErrSecret, namespace)
}

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
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// ErrSecret: a pull secret cannot be had. It is a fault of the object; any other error is trouble with the API server.
var ErrSecret = errors.New("the pull secrets cannot be used")

// Names are those of references to secrets.
func Names(references []corev1.LocalObjectReference) []string {
	var list []string
	for _, r := range references {
		list = append(list, r.Name)
	}
	return list
}

// Keys reads the pull secrets of a namespace. Without any there are no credentials, and that is no error. Live must not read from a cache;
// the controller may not list Secrets.
func Keys(ctx context.Context, live client.Reader, namespace string, names []string) (authn.Keychain, error) {
	if len(names) == 0 {
		return nil, nil //nolint:nilnil // anonymous is a good answer
	}
	contents := make([][]byte, 0, len(names))
	for _, name := range names {
		var secret corev1.Secret
		if err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
			return nil, secretFault(namespace, name, err)
		}
		if secret.Type != corev1.SecretTypeDockerConfigJson {
			return nil, fmt.Errorf("%w: Secret %s/%s is of type %s, expected %s", ErrSecret, namespace, name, secret.Type,
				corev1.SecretTypeDockerConfigJson)
		}
		contents = append(contents, secret.Data[corev1.DockerConfigJsonKey])
	}
	keys, err := registry.Credentials(contents...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSecret, err)
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

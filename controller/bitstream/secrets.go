// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// errPullSecret: a pull secret cannot be had.
var errPullSecret = errors.New("the pull secrets cannot be used")

// Keys reads an object's pull secrets. Without any there are no credentials, and that is no error.
func Keys(ctx context.Context, live client.Reader, o Object) (authn.Keychain, error) {
	if len(o.Secrets) == 0 {
		return nil, nil //nolint:nilnil // anonymous is a good answer
	}
	contents := make([][]byte, 0, len(o.Secrets))
	for _, name := range o.Secrets {
		var secret corev1.Secret
		if err := live.Get(ctx, client.ObjectKey{Namespace: o.SecretNamespace, Name: name}, &secret); err != nil {
			return nil, secretFault(o, name, err)
		}
		if secret.Type != corev1.SecretTypeDockerConfigJson {
			return nil, fmt.Errorf("%w: Secret %s/%s is of type %s, expected %s", errPullSecret, o.SecretNamespace, name, secret.Type,
				corev1.SecretTypeDockerConfigJson)
		}
		contents = append(contents, secret.Data[corev1.DockerConfigJsonKey])
	}
	keys, err := artifact.Credentials(contents...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPullSecret, err)
	}
	return keys, nil
}

// secretFault says what to do about a secret that cannot be read. Trouble with the API server passes and is no fault of the object.
func secretFault(o Object, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: there is no Secret %s in namespace %s", errPullSecret, name, o.SecretNamespace)
	case apierrors.IsForbidden(err):
		return forbidden(o)
	}
	return fmt.Errorf("read Secret %s/%s: %w", o.SecretNamespace, name, err)
}

func forbidden(o Object) error {
	return fmt.Errorf("%w: the controller may not read Secrets of namespace %s, or not grant that to the nodes; an administrator adds it to "+
		"bitstreams.pullSecretNamespaces of the chart", errPullSecret, o.SecretNamespace)
}

// SPDX-License-Identifier: Apache-2.0

// Package pullsecret reads the credentials in the Secrets that objects name for their images. The controller and the nodes read them by the
// same rules, so a node can pull what the controller resolved.
package pullsecret

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// ErrUnusable marks a Secret that is missing, forbidden, of another type or not readable as credentials. The object that names it is at
// fault. Any other error of Read is trouble with the API server, which passes.
var ErrUnusable = errors.New("the pull secrets cannot be used")

// Getter reads one Secret from the API server. It must not read from a cache, since neither the controller nor the nodes may list Secrets.
type Getter func(ctx context.Context, namespace, name string) (*corev1.Secret, error)

// form says where the credentials are in a Secret of one type.
type form struct {
	key    string
	legacy bool
}

// forms has the types of Secrets that kubelet takes as pull secrets. Only these count, so that an object cannot be used to read any other
// Secret of its namespace.
var forms = map[corev1.SecretType]form{
	corev1.SecretTypeDockerConfigJson: {key: corev1.DockerConfigJsonKey},
	corev1.SecretTypeDockercfg:        {key: corev1.DockerConfigKey, legacy: true},
}

// Read reads the pull secrets of a namespace into one keychain. Without names the keychain is empty and requests are anonymous.
//
// One Secret that cannot be used fails the call: without its credentials a registry would answer "not found" or "access refused", which
// says less. An error names the Secret, what was expected and the next step, and nothing of the content.
func Read(ctx context.Context, get Getter, namespace string, names []string) (*registry.Keychain, error) {
	configs := make([]registry.DockerConfig, 0, len(names))
	for _, name := range names {
		secret, err := get(ctx, namespace, name)
		if err != nil {
			return nil, explain(namespace, name, err)
		}
		config, err := configOf(secret, namespace, name)
		if err != nil {
			return nil, err
		}
		configs = append(configs, config)
	}
	keys, err := registry.NewKeychain(configs...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return keys, nil
}

func configOf(secret *corev1.Secret, namespace, name string) (registry.DockerConfig, error) {
	where, ok := forms[secret.Type]
	if !ok {
		return registry.DockerConfig{}, fmt.Errorf("%w: Secret %s/%s is of type %s, expected %s or %s: make it with "+
			"kubectl create secret docker-registry", ErrUnusable, namespace, name, secret.Type,
			corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg)
	}
	data, ok := secret.Data[where.key]
	if !ok {
		return registry.DockerConfig{}, fmt.Errorf("%w: Secret %s/%s of type %s has no key %s: make it with "+
			"kubectl create secret docker-registry", ErrUnusable, namespace, name, secret.Type, where.key)
	}
	return registry.DockerConfig{Name: fmt.Sprintf("Secret %s/%s, key %s", namespace, name, where.key), Data: data, Legacy: where.legacy}, nil
}

// explain says what to do about a Secret that was not read.
func explain(namespace, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: there is no Secret %s/%s: make it with kubectl create secret docker-registry, or name another: %w",
			ErrUnusable, namespace, name, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: Secret %s/%s may not be read: an administrator adds its namespace to bitstreams.pullSecretNamespaces of the "+
			"chart, and the controller then lets the nodes read what objects name: %w", ErrUnusable, namespace, name, err)
	}
	return fmt.Errorf("read Secret %s/%s: %w", namespace, name, err)
}

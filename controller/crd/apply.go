// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// establishTimeout bounds the wait for the API server to serve a definition, which usually takes less than a second.
const establishTimeout = 30 * time.Second

// Apply brings one definition to the API server by server-side apply as owner and returns once it is served. Applying the same
// definition again changes nothing. It returns a [*RefusedError] when the live definition has stored versions that d lacks, and
// then leaves it untouched.
//
// The client must not read from a cache.
func Apply(ctx context.Context, c client.Client, d Definition, owner string) error {
	var live apiextensionsv1.CustomResourceDefinition
	err := c.Get(ctx, client.ObjectKey{Name: d.Name}, &live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read CustomResourceDefinition %s: %w", d.Name, err)
	}
	if refused := check(&live, d); refused != nil {
		return refused
	}
	apply := client.ApplyConfigurationFromUnstructured(d.object.DeepCopy())
	if err := c.Apply(ctx, apply, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply CustomResourceDefinition %s: %w", d.Name, err)
	}
	return WaitEstablished(ctx, c, d.Name)
}

// WaitEstablished returns once the API server serves the definition, or an error that quotes its conditions.
func WaitEstablished(ctx context.Context, c client.Reader, name string) error {
	var live apiextensionsv1.CustomResourceDefinition
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, establishTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: name}, &live)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && established(&live), err
	})
	if err != nil {
		return fmt.Errorf("wait for CustomResourceDefinition %s to be established (conditions %+v): %w",
			name, live.Status.Conditions, err)
	}
	return nil
}

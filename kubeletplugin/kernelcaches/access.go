// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// access is how a claim has a cache: as it says itself, as the object says, or as its pods can.
func access(
	source v1alpha1.KernelCacheSource, mount *v1alpha1.CacheMount, usesUserNamespace func() (bool, error),
) (cachemount.Access, error) {
	for _, said := range []v1alpha1.CacheAccess{source.Access, mount.Access} {
		if said != "" {
			return cachemount.Access(said), nil
		}
	}
	inUserNamespace, err := usesUserNamespace()
	if inUserNamespace {
		return cachemount.Seed, err
	}
	return cachemount.Overlay, err
}

// usesUserNamespace says whether a pod that a claim is reserved for has a user namespace, which takes no mount of an overlay. A pod that is
// gone, or has the name of one that is, does not count.
func (f *Feature) usesUserNamespace(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error) {
	for i := range c.Status.ReservedFor {
		consumer := &c.Status.ReservedFor[i]
		if consumer.APIGroup != "" || consumer.Resource != "pods" {
			continue
		}
		pod, err := f.pods.find(ctx, c.Namespace, consumer)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, fmt.Errorf("whether pod %s has hostUsers: false is not known, which decides how it has caches: %w", consumer.Name, err)
		case pod.UID == consumer.UID && userNamespace(pod):
			return true, nil
		}
	}
	return false, nil
}

func userNamespace(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

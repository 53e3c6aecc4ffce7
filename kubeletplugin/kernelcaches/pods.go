// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// pods reads the pods that claims are reserved for.
type pods struct {
	kube kubernetes.Interface
}

// users yields the pods that a claim is reserved for, or the error that ends it. Deleted pods, and new pods of the same name, do not count.
func (p *pods) users(ctx context.Context, c *resourceapi.ResourceClaim) iter.Seq2[*corev1.Pod, error] {
	return func(yield func(*corev1.Pod, error) bool) {
		for i := range c.Status.ReservedFor {
			consumer := &c.Status.ReservedFor[i]
			if consumer.APIGroup != "" || consumer.Resource != "pods" {
				continue
			}
			pod, err := p.kube.CoreV1().Pods(c.Namespace).Get(ctx, consumer.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
			case err != nil:
				yield(nil, fmt.Errorf("read pod %s: %w", consumer.Name, err))
				return
			case pod.UID == consumer.UID && !yield(pod, nil):
				return
			}
		}
	}
}

// access returns the access mode that the claim asks for, else the object's, else Seed or Overlay as the claim's pods need.
func access(
	source v1alpha1.KernelCacheSource, mount *v1alpha1.CacheMount, usesUserNamespace func() (bool, error),
) (cachemount.Access, error) {
	for _, asked := range []v1alpha1.CacheAccess{source.Access, mount.Access} {
		if asked != "" {
			return cachemount.Access(asked), nil
		}
	}
	inUserNamespace, err := usesUserNamespace()
	if inUserNamespace {
		return cachemount.Seed, err
	}
	return cachemount.Overlay, err
}

// usesUserNamespace reports whether a pod that the claim is reserved for has a user namespace, where an overlay cannot be mounted.
func (p *pods) usesUserNamespace(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error) {
	for pod, err := range p.users(ctx, c) {
		if err != nil {
			return false, fmt.Errorf("spec.hostUsers decides how caches are mounted: %w", err)
		}
		if userNamespace(pod) {
			return true, nil
		}
	}
	return false, nil
}

func userNamespace(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// maxMissed bounds the pods that are looked at, and the containers that a message names: a claim has as many pods, and a pod as many
// containers, as a tenant likes.
const maxMissed = 8

// missed returns why no container of the request would find an entry of a cache, though their GPUs could use it. A claim of many pods is
// not judged.
func (p *pods) missed(
	ctx context.Context, c *resourceapi.ResourceClaim, r *request, o *object, found *kernelcache.Cache,
) ([]string, error) {
	key := found.KeyOfPod(o.mount().Env != v1alpha1.CacheEnvNone)
	if len(key.Variables) == 0 || len(c.Status.ReservedFor) > maxMissed {
		return nil, nil
	}
	claim := &preset.Claim{ResourceClaim: c, Devices: []preset.Device{{Request: r.base}}}
	var out []string
	for pod, err := range p.users(ctx, c) {
		if err != nil {
			return nil, fmt.Errorf("%s %w: whether containers will find its entries: %w", o, cachemount.ErrNotReady, err)
		}
		if podspec.Ended(pod) || pod.DeletionTimestamp != nil {
			continue // no container of it starts any more
		}
		names := preset.Containers(pod, claim, r.base)
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if !slices.Contains(names, container.Name) {
				continue
			}
			reason := missedBy(&key, &container)
			if reason == "" {
				return nil, nil
			}
			out = append(out, fmt.Sprintf("container %s of pod %s: %s", container.Name, pod.Name, reason))
		}
	}
	if more := len(out) - maxMissed; more > 0 {
		out = append(out[:maxMissed], fmt.Sprintf("and so would %d more containers", more))
	}
	return out, nil
}

// missedBy returns why a container would miss every entry of a cache with this key, or "". It tells what is certain: what an image, a
// ConfigMap or another variable sets is not known here, and neither is what the program sets itself.
func missedBy(key *kernelcache.Key, container *corev1.Container) string {
	for i, e := range container.Env {
		if e.ValueFrom != nil || strings.Contains(e.Value, "$") {
			continue
		}
		reason := key.MissedWith(e.Name, e.Value)
		again := func(o corev1.EnvVar) bool { return o.Name == e.Name }
		if reason != "" && !slices.ContainsFunc(container.Env[i+1:], again) {
			return reason
		}
	}
	return ""
}

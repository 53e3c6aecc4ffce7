// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// The watched resources.
const (
	cacheResource        = "gpukernelcaches"
	clusterCacheResource = "clustergpukernelcaches"
)

// object is a cache of either kind.
type object struct{ v1alpha1.CommonGPUKernelCache }

// objectOf converts a GPUKernelCache or a ClusterGPUKernelCache. It returns nil for anything else.
func objectOf(item any) *object {
	pair, ok := item.(interface {
		Common() v1alpha1.CommonGPUKernelCache
	})
	if !ok {
		return nil
	}
	return &object{pair.Common()}
}

// mount returns how the object wants its cache mounted.
func (o *object) mount() *v1alpha1.CacheMount {
	if o.Spec.Mount == nil {
		return &v1alpha1.CacheMount{}
	}
	return o.Spec.Mount
}

// checkNamespace returns an error if claims of a namespace may not have the cache.
func (o *object) checkNamespace(namespace string) error {
	if o.AllowsNamespace(namespace) {
		return nil
	}
	return fmt.Errorf("%s %w: spec.workloadNamespaces does not have %s: ask its owner to add the namespace",
		o, cachemount.ErrRefused, namespace)
}

// checkReady returns an error if nodes may not, or not yet, use the object's image.
func (o *object) checkReady() error {
	const wait = "wait for the controller"
	message := func(kind, otherwise string) string {
		if c := meta.FindStatusCondition(o.Status.Conditions, kind); c != nil && c.Message != "" {
			return c.Message
		}
		return otherwise
	}
	switch {
	case o.Status.ObservedGeneration != o.GetGeneration() || o.Status.ResolvedDigest == "":
		return fmt.Errorf("%s %w: its image is not resolved: %s", o, cachemount.ErrNotReady, message(v1alpha1.ConditionResolved, wait))
	case o.Status.Verification == nil || o.Status.Verification.Digest != o.Status.ResolvedDigest:
		return fmt.Errorf("%s %w: its signatures are not verified yet: %s", o, cachemount.ErrNotReady, message(v1alpha1.ConditionVerified, wait))
	case o.Status.Verification.Result == v1alpha1.VerdictRefused:
		return fmt.Errorf("%s %w: %s", o, cachemount.ErrRefused, message(v1alpha1.ConditionVerified, o.Status.Verification.Message))
	}
	return nil
}

// IsRefused reports whether err means that a cache is refused.
func IsRefused(err error) bool { return errors.Is(err, cachemount.ErrRefused) }

// IsNotReady reports whether err means that a cache is not available yet.
func IsNotReady(err error) bool { return errors.Is(err, cachemount.ErrNotReady) }

// objects reads caches from the API server.
type objects struct {
	dynamic dynamic.Interface
	// informers are keyed by resource.
	informers map[string]*follow.Informer

	// listeners are called after an object changed, and once all are known.
	listeners follow.Listeners
}

func newObjects(client dynamic.Interface) (*objects, error) {
	o := &objects{dynamic: client, informers: map[string]*follow.Informer{}}
	for _, resource := range []string{cacheResource, clusterCacheResource} {
		informer, err := follow.Own(client, resource, decode, o.listeners.Call)
		if err != nil {
			return nil, err
		}
		o.informers[resource] = informer
	}
	return o, nil
}

// watch runs the informers until ctx ends. stopped waits for their end.
func (o *objects) watch(ctx context.Context) (stopped func()) {
	return follow.Run(ctx, slices.Collect(maps.Values(o.informers))...)
}

// waitSynced waits until every informer has its first list. It returns false if ctx ended before.
func (o *objects) waitSynced(ctx context.Context) bool {
	var read []cache.InformerSynced
	for _, informer := range o.informers {
		read = append(read, informer.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), read...)
}

// synced reports whether every informer has its first list.
func (o *objects) synced() bool {
	for _, informer := range o.informers {
		if !informer.HasSynced() {
			return false
		}
	}
	return true
}

// decode decodes an object once for each version, for the informers to keep, and drops what nothing reads and tenants may
// make as large as they like.
func decode(in any) (any, error) {
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil
	}
	read := func(out any, m *metav1.ObjectMeta, spec *v1alpha1.GPUKernelCacheSpec, status *v1alpha1.GPUKernelCacheStatus) (any, error) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
			return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
		*m, spec.PodTemplate, *status = v1alpha1.KeptMeta(m), nil, keptStatus(status)
		return out, nil
	}
	switch u.GetKind() {
	case v1alpha1.KindGPUKernelCache:
		c := &v1alpha1.GPUKernelCache{}
		return read(c, &c.ObjectMeta, &c.Spec, &c.Status)
	case v1alpha1.KindClusterGPUKernelCache:
		c := &v1alpha1.ClusterGPUKernelCache{}
		return read(c, &c.ObjectMeta, &c.Spec.GPUKernelCacheSpec, &c.Status)
	default:
		return in, nil
	}
}

// keptStatus is what a node reads of the status. Counts and volumes change with every node that has the cache, and would have all others
// look at it again.
func keptStatus(s *v1alpha1.GPUKernelCacheStatus) v1alpha1.GPUKernelCacheStatus {
	kept := v1alpha1.GPUKernelCacheStatus{
		ObservedGeneration: s.ObservedGeneration, ResolvedDigest: s.ResolvedDigest, Verification: s.Verification,
		Admitted: s.Admitted, AdmittedSince: s.AdmittedSince,
	}
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionResolved || c.Type == v1alpha1.ConditionVerified {
			kept.Conditions = append(kept.Conditions, metav1.Condition{Type: c.Type, Message: c.Message})
		}
	}
	return kept
}

// get returns a cache.
func (o *objects) get(ctx context.Context, kind, namespace, name string) (*object, error) {
	resource, of := cacheResource, v1alpha1.KindGPUKernelCache+" "+namespace+"/"+name
	if kind == v1alpha1.KindClusterGPUKernelCache {
		resource, namespace, of = clusterCacheResource, "", kind+" "+name
	}
	found, err := o.find(ctx, resource, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", of, cachemount.ErrNotReady, err)
	}
	if o := objectOf(found); o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("%s %w: it does not exist: create it, or correct kernelCaches of the claim", of, cachemount.ErrRefused)
}

// find returns an object, nil if there is none. It asks the API server while the informer is not current.
func (o *objects) find(ctx context.Context, resource, namespace, name string) (any, error) {
	if informer := o.informers[resource]; informer.Current() {
		found, _, err := informer.GetStore().GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
		return found, err
	}
	found, err := o.dynamic.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // documented above
	}
	if err != nil {
		return nil, err
	}
	return decode(found)
}

// list returns the caches that the informers know.
func (o *objects) list() []*object {
	var out []*object
	for _, resource := range []string{clusterCacheResource, cacheResource} {
		for _, item := range o.informers[resource].GetStore().List() {
			if o := objectOf(item); o != nil {
				out = append(out, o)
			}
		}
	}
	return out
}

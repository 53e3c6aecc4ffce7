// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// concerned returns the keys of the objects of a scope for which a condition holds.
func (r *resolver) concerned(ctx context.Context, scope pairs.Scope, is func(object) bool) (keys []types.NamespacedName) {
	all, err := pairs.KernelCaches(ctx, r.client, scope, client.UnsafeDisableDeepCopy)
	if err != nil {
		klog.FromContext(ctx).Error(err, "List the kernel caches that a change concerns")
	}
	for _, c := range all {
		if is(object{c, r.namespace}) {
			keys = append(keys, c.Key())
		}
	}
	return keys
}

// onPolicies queues the caches that a changed policy is for.
func (r *resolver) onPolicies(scope pairs.Scope) handler.EventHandler {
	return artifacts.OnPolicies(r.mirrors, func(ctx context.Context) (heads []artifacts.Head, err error) {
		all, err := pairs.KernelCaches(ctx, r.client, scope, client.UnsafeDisableDeepCopy)
		for _, c := range all {
			heads = append(heads, Head(c, r.namespace))
		}
		return heads, err
	})
}

// onNodes queues the caches of which a node reports something else, some time later, since many nodes fetch the same cache at about the
// same time. If the node got or lost its GPUs, it queues the caches that every node with a GPU fetches, too.
func (r *resolver) onNodes(scope pairs.Scope) handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		keys := map[types.NamespacedName]bool{}
		was, is := reconciler.NodeStatus(before), reconciler.NodeStatus(now)
		for _, entry := range reconciler.Difference(was.KernelCaches, is.KernelCaches) {
			if (entry.Namespace == "") == (scope == pairs.OfCluster) {
				keys[types.NamespacedName{Namespace: entry.Namespace, Name: entry.Name}] = true
			}
		}
		if rest(was.Rest) != rest(is.Rest) {
			differs := func(o object) bool { return !slices.Equal(cachesOf(&was, o), cachesOf(&is, o)) }
			for _, key := range r.concerned(ctx, scope, differs) {
				keys[key] = true
			}
		}
		if hasGPU(was.Pools) != hasGPU(is.Pools) {
			everywhere := func(o object) bool { return o.Prewarm() == v1alpha1.CachePrewarmAll }
			for _, key := range r.concerned(ctx, scope, everywhere) {
				keys[key] = true
			}
		}
		for key := range keys {
			q.AddAfter(reconcile.Request{NamespacedName: key}, reconciler.Gathering)
		}
	})
}

// rest returns the caches that a node reports in short.
func rest(r *v1alpha1.NodeRest) string {
	if r == nil {
		return ""
	}
	return r.KernelCaches
}

// onNamespaces queues the ClusterGPUKernelCaches that list a namespace which comes or goes.
func (r *resolver) onNamespaces() handler.EventHandler {
	return reconciler.OnChange(func(ctx context.Context, q reconciler.RequestQueue, before, now client.Object) {
		name := ""
		for _, object := range []client.Object{before, now} {
			if object != nil {
				name = object.GetName()
			}
		}
		for _, key := range r.concerned(ctx, pairs.OfCluster, func(o object) bool { return o.names(name) }) {
			q.AddAfter(reconcile.Request{NamespacedName: key}, reconciler.Gathering)
		}
	})
}

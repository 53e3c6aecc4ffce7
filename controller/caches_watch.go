// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/cache"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// register adds the reconciler to the manager, once a kind; the CRDs must be established. A change of the spec counts, one of claims and
// Jobs of volumes, of a policy, and of what nodes say.
func (r *cacheReconciler) register(mgr manager.Manager) error {
	respecified := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	build := func(name string, kind client.Object, ofCluster bool) *builder.Builder {
		b := builder.ControllerManagedBy(mgr).Named(name).
			For(kind, respecified).
			Watches(&v1alpha1.AcceleratorNode{}, r.onNodes(ofCluster)).
			Watches(&v1alpha1.TrustPolicy{}, r.onPolicies(ofCluster), respecified).
			WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: cacheWorkers})
		if !r.withVolumes { // which may not be read then
			return b
		}
		owned := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), kind, handler.OnlyControllerOwner())
		return b.Watches(&corev1.PersistentVolumeClaim{}, owned).Watches(&batchv1.Job{}, owned)
	}
	return errors.Join(
		build("gpukernelcache", &v1alpha1.GPUKernelCache{}, false).Complete(r),
		build("clustergpukernelcache", &v1alpha1.ClusterGPUKernelCache{}, true).
			WatchesMetadata(&corev1.Namespace{}, r.onNamespaces(), builder.WithPredicates(comesOrGoes())).
			Complete(r),
	)
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return m
}

// comesOrGoes lets through what appears and disappears.
func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

// objects are all of a kind. They are the cache's own and may not be changed.
func (r *cacheReconciler) objects(ctx context.Context, ofCluster bool) (all []cache.Object, err error) {
	if ofCluster {
		var list v1alpha1.ClusterGPUKernelCacheList
		err = r.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
		for i := range list.Items {
			all = append(all, cache.Of(list.Items[i].Common(), r.namespace))
		}
		return all, err
	}
	var list v1alpha1.GPUKernelCacheList
	err = r.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		all = append(all, cache.Of(list.Items[i].Common(), r.namespace))
	}
	return all, err
}

// concerned are the keys of the objects of a kind that something concerns.
func (r *cacheReconciler) concerned(ctx context.Context, ofCluster bool, is func(cache.Object) bool) (keys []types.NamespacedName) {
	all, err := r.objects(ctx, ofCluster)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Kernel caches are not looked at now because something about them changed")
	}
	for _, o := range all {
		if is(o) {
			keys = append(keys, client.ObjectKeyFromObject(o))
		}
	}
	return keys
}

// changes is a handler that is told what an object was, nil where it is new, and is now, nil where it is gone.
func changes(tell func(ctx context.Context, q requestQueue, before, now client.Object)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requestQueue) { tell(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) { tell(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requestQueue) { tell(ctx, q, e.Object, nil) },
	}
}

// onPolicies has the objects of a kind verified anew that a policy was or is for. For which these are it need not compile.
func (r *cacheReconciler) onPolicies(ofCluster bool) handler.EventHandler {
	return changes(func(ctx context.Context, q requestQueue, before, now client.Object) {
		var versions []*trust.Policy
		for _, object := range []client.Object{before, now} {
			if p, ok := object.(*v1alpha1.TrustPolicy); ok {
				versions = append(versions, trust.Load(p, nil))
			}
		}
		for _, key := range r.concerned(ctx, ofCluster, func(o cache.Object) bool { return o.ConcernedBy(versions) }) {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	})
}

// onNodes has the objects of a kind counted anew of which a node says something else, some time later, since many nodes fetch the same
// cache at about the same time.
func (r *cacheReconciler) onNodes(ofCluster bool) handler.EventHandler {
	return changes(func(ctx context.Context, q requestQueue, before, now client.Object) {
		for _, key := range cache.Changed(cachesOn(before), cachesOn(now)) {
			if (key.Namespace == "") == ofCluster {
				q.AddAfter(reconcile.Request{NamespacedName: key}, gathering)
			}
		}
		if hasGPU(before) == hasGPU(now) {
			return
		}
		everywhere := func(o cache.Object) bool { return o.Prewarm() == v1alpha1.CachePrewarmAll }
		for _, key := range r.concerned(ctx, ofCluster, everywhere) {
			q.AddAfter(reconcile.Request{NamespacedName: key}, gathering)
		}
	})
}

func cachesOn(object client.Object) []v1alpha1.NodeCache {
	if node, ok := object.(*v1alpha1.AcceleratorNode); ok {
		return node.Status.KernelCaches
	}
	return nil
}

func hasGPU(object client.Object) bool {
	node, ok := object.(*v1alpha1.AcceleratorNode)
	return ok && cache.HasGPU(node)
}

// onNamespaces has the ClusterGPUKernelCaches looked at that name a namespace which comes or goes.
func (r *cacheReconciler) onNamespaces() handler.EventHandler {
	return changes(func(ctx context.Context, q requestQueue, before, now client.Object) {
		name := ""
		for _, object := range []client.Object{before, now} {
			if object != nil {
				name = object.GetName()
			}
		}
		for _, key := range r.concerned(ctx, true, func(o cache.Object) bool { return o.Names(name) }) {
			q.AddAfter(reconcile.Request{NamespacedName: key}, gathering)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// shippedReconciler makes the presets of vendors, makes them again when they are deleted, and brings those that nobody changed to what this
// version ships, or takes them away where their vendor is not wanted.
type shippedReconciler struct {
	client client.Client
	pause  pauser
	wanted map[string]*v1alpha1.ClusterDevicePreset
}

func newShippedReconciler(mgr manager.Manager, pause pauser, vendors []string) *shippedReconciler {
	return &shippedReconciler{client: mgr.GetClient(), pause: pause, wanted: byName(ShippedPresets(vendors))}
}

func byName(all []*v1alpha1.ClusterDevicePreset) map[string]*v1alpha1.ClusterDevicePreset {
	out := map[string]*v1alpha1.ClusterDevicePreset{}
	for _, p := range all {
		out[p.Name] = p
	}
	return out
}

// register adds the reconciler to the manager; the CRD must be established. As with classes, one that does not exist sends no event.
func (r *shippedReconciler) register(mgr manager.Manager) error {
	first := make(chan event.TypedGenericEvent[*v1alpha1.ClusterDevicePreset], len(r.wanted))
	for _, p := range r.wanted {
		first <- event.TypedGenericEvent[*v1alpha1.ClusterDevicePreset]{Object: p}
	}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return r.wanted[o.GetName()] != nil || o.GetLabels()[ManagedByLabel] == Name
	})
	return builder.ControllerManagedBy(mgr).Named("shippedpreset").
		For(&v1alpha1.ClusterDevicePreset{}, builder.WithPredicates(ours)).
		WatchesRawSource(source.Channel(first, &handler.TypedEnqueueRequestForObject[*v1alpha1.ClusterDevicePreset]{})).
		Complete(r)
}

// Reconcile brings one preset to what is shipped under its name.
func (r *shippedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	want := r.wanted[req.Name]
	var live v1alpha1.ClusterDevicePreset
	err := r.client.Get(ctx, req.NamespacedName, &live)
	switch {
	case apierrors.IsNotFound(err) && want != nil:
		err = r.create(ctx, want)
	case err != nil:
		err = client.IgnoreNotFound(err)
	case live.DeletionTimestamp != nil || !AsShipped(&live):
		// An administrator's, as it is or as it was changed.
	case want == nil:
		err = r.remove(ctx, &live)
	case live.Annotations[ShippedAnnotation] != want.Annotations[ShippedAnnotation]:
		err = r.follow(ctx, &live, want)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("shipped ClusterDevicePreset %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}

// create leaves one alone that somebody made meanwhile: word of it is on the way.
func (r *shippedReconciler) create(ctx context.Context, want *v1alpha1.ClusterDevicePreset) error {
	if err := r.client.Create(ctx, want.DeepCopy(), client.FieldOwner(Name)); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	klog.FromContext(ctx).Info("made the shipped ClusterDevicePreset", "preset", want.Name)
	return nil
}

// remove deletes what it looked at, and not what it has become since.
func (r *shippedReconciler) remove(ctx context.Context, live *v1alpha1.ClusterDevicePreset) error {
	same := client.Preconditions{UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion)}
	if err := r.client.Delete(ctx, live, same); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("deleted the shipped ClusterDevicePreset, whose vendor is not wanted", "preset", live.Name)
	return nil
}

// follow writes what this version ships. A change in between is a conflict.
func (r *shippedReconciler) follow(ctx context.Context, live, want *v1alpha1.ClusterDevicePreset) error {
	live.Annotations[ShippedAnnotation] = want.Annotations[ShippedAnnotation]
	want.Spec.DeepCopyInto(&live.Spec)
	if err := r.client.Update(ctx, live, client.FieldOwner(Name)); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("brought the shipped ClusterDevicePreset to this version", "preset", live.Name)
	return nil
}

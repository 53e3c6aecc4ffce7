// SPDX-License-Identifier: Apache-2.0

package shippedpresets

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// keeper makes the presets of vendors, makes them again when they are deleted, brings unchanged ones to what this version ships, and
// deletes unchanged ones of vendors that are not wanted.
type keeper struct {
	client client.Client
	wanted map[string]*v1alpha1.ClusterDevicePreset
}

// New returns the reconciler for the presets of the given vendors. It also queues each wanted name once at the start.
func New(s reconciler.Services, vendors []string) reconciler.Row {
	k := &keeper{client: s.Client, wanted: byName(Presets(vendors))}
	shipped := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return k.wanted[o.GetName()] != nil || o.GetLabels()[names.ManagedByLabel] == names.Controller
	})
	return reconciler.Row{
		Name: "shipped ClusterDevicePresets",
		Queues: []reconciler.Queue{{
			Name: "shippedpreset", Sources: reconciler.Initially(k.wanted), Reconciler: k,
			Watches: []reconciler.Watch{{Object: &v1alpha1.ClusterDevicePreset{}, Predicates: []predicate.Predicate{shipped}}},
		}},
	}
}

func byName(all []*v1alpha1.ClusterDevicePreset) map[string]*v1alpha1.ClusterDevicePreset {
	out := map[string]*v1alpha1.ClusterDevicePreset{}
	for _, p := range all {
		out[p.Name] = p
	}
	return out
}

// Reconcile brings one preset to the one that is shipped under its name.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	want := k.wanted[req.Name]
	var live v1alpha1.ClusterDevicePreset
	err := k.client.Get(ctx, req.NamespacedName, &live)
	switch {
	case apierrors.IsNotFound(err) && want != nil:
		err = k.create(ctx, want)
	case err != nil:
		err = client.IgnoreNotFound(err)
	case live.DeletionTimestamp != nil || !AsShipped(&live):
		// It belongs to an administrator, who made or changed it.
	case want == nil:
		err = k.remove(ctx, &live)
	case live.Annotations[Annotation] != want.Annotations[Annotation]:
		err = k.follow(ctx, &live, want)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("shipped ClusterDevicePreset %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}

// create makes the preset. If it was made in the meantime it is kept, and the watch reports it.
func (k *keeper) create(ctx context.Context, want *v1alpha1.ClusterDevicePreset) error {
	if err := k.client.Create(ctx, want.DeepCopy(), client.FieldOwner(names.Controller)); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	klog.FromContext(ctx).Info("Made the shipped ClusterDevicePreset", "preset", want.Name)
	return nil
}

// remove deletes the preset unless it changed since it was read.
func (k *keeper) remove(ctx context.Context, live *v1alpha1.ClusterDevicePreset) error {
	same := client.Preconditions{UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion)}
	if err := k.client.Delete(ctx, live, same); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("Deleted the shipped ClusterDevicePreset of a vendor that is not wanted", "preset", live.Name)
	return nil
}

// follow writes the spec that this version ships. A change in between is a conflict.
func (k *keeper) follow(ctx context.Context, live, want *v1alpha1.ClusterDevicePreset) error {
	live.Annotations[Annotation] = want.Annotations[Annotation]
	want.Spec.DeepCopyInto(&live.Spec)
	if err := k.client.Update(ctx, live, client.FieldOwner(names.Controller)); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("Updated the shipped ClusterDevicePreset to this version", "preset", live.Name)
	return nil
}

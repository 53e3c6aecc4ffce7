// SPDX-License-Identifier: Apache-2.0

// Package priorityclasses makes the PriorityClasses of PartitionPolicies and keeps them as the policies want them. One that somebody else
// made is left alone.
package priorityclasses

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
)

// keeper makes, changes and deletes PriorityClasses.
type keeper struct{ client client.Client }

// New returns the reconciler. It follows PriorityClasses and the policies that want some. If it is switched off, it has no queue.
func New(s reconciler.Services, enabled bool) reconciler.Row {
	row := reconciler.Row{Name: "PriorityClasses"}
	if !enabled {
		return row
	}
	row.Queues = []reconciler.Queue{{
		Name: "priorityclass", Reconciler: &keeper{client: s.Client},
		Watches: []reconciler.Watch{
			{Object: &schedulingv1.PriorityClass{}},
			{Object: &v1alpha1.PartitionPolicy{}, Handler: onPolicies(), Predicates: reconciler.GenerationChanged()},
		},
	}}
	return row
}

// onPolicies queues the classes that a policy wants or wanted.
func onPolicies() handler.EventHandler {
	return reconciler.OnChange(func(_ context.Context, q reconciler.RequestQueue, before, now client.Object) {
		for _, o := range []client.Object{before, now} {
			p, ok := o.(*v1alpha1.PartitionPolicy)
			if !ok || p.Spec.Nodes == nil {
				continue
			}
			for _, c := range p.Spec.Nodes.PriorityClasses {
				q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: c.Name}})
			}
		}
	})
}

// Ours says whether the controller made a PriorityClass.
func Ours(c *schedulingv1.PriorityClass) bool {
	return c.Labels[names.ManagedByLabel] == names.Controller
}

// Reconcile brings one PriorityClass to what the first policy that names it wants.
func (k *keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var policies v1alpha1.PartitionPolicyList
	if err := k.client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list PartitionPolicies: %w", err)
	}
	of, wanted := nodepolicy.Classes(policies.Items)[req.Name]
	var live schedulingv1.PriorityClass
	err := k.client.Get(ctx, req.NamespacedName, &live)
	switch {
	case apierrors.IsNotFound(err) && wanted:
		err = k.create(ctx, object(of))
	case err != nil:
		err = client.IgnoreNotFound(err)
	case live.DeletionTimestamp != nil || !Ours(&live):
		// Whoever made it keeps it.
	case !wanted || live.Value != of.Value:
		// The value cannot be changed. The watch reports that the class is gone, and it is made again.
		err = k.remove(ctx, &live)
	default:
		err = k.follow(ctx, &live, object(of))
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("PriorityClass %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}

// object returns the PriorityClass that a policy wants. It goes with its policy, also while no controller runs.
func object(of nodepolicy.Class) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: of.Name, Labels: map[string]string{names.ManagedByLabel: names.Controller},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy, Name: of.Policy, UID: of.UID,
				Controller: ptr.To(true),
			}},
		},
		Value: of.Value, Description: of.Description,
	}
}

// create makes the class. If somebody made it in the meantime it is theirs, and the watch reports it.
func (k *keeper) create(ctx context.Context, want *schedulingv1.PriorityClass) error {
	if err := k.client.Create(ctx, want, client.FieldOwner(names.Controller)); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	klog.FromContext(ctx).Info("Made a PriorityClass", "class", want.Name, "value", want.Value)
	return nil
}

// remove deletes the class unless it changed since it was read.
func (k *keeper) remove(ctx context.Context, live *schedulingv1.PriorityClass) error {
	same := client.Preconditions{UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion)}
	if err := k.client.Delete(ctx, live, same); err != nil {
		return client.IgnoreNotFound(err)
	}
	klog.FromContext(ctx).Info("Deleted a PriorityClass that no policy wants as it was", "class", live.Name, "value", live.Value)
	return nil
}

// follow writes the description and the owner if they are others.
func (k *keeper) follow(ctx context.Context, live, want *schedulingv1.PriorityClass) error {
	before := live.DeepCopy()
	live.Description, live.OwnerReferences = want.Description, want.OwnerReferences
	if equality.Semantic.DeepEqual(before, live) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(k.client.Patch(ctx, live, patch, client.FieldOwner(names.Controller)))
}

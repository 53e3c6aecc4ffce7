// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// nodeReconciler deletes the AcceleratorNodes of Nodes that are gone and takes back the retirement that an uninstall left behind
// when it gave up. All else in an AcceleratorNode is its plugin's. Only metadata is read, so its memory does not grow with what
// the nodes report.
type nodeReconciler struct {
	client  client.Client
	live    client.Reader // not cached: a late watch must not cost a node its object
	clock   clock.PassiveClock
	metrics *metrics
	pause   pauser
	// absent is by AcceleratorNode name. Only Reconcile uses it, and one call runs at a time.
	absent map[string]absence
}

// newNodeReconciler returns the reconciler of the AcceleratorNodes.
func newNodeReconciler(mgr manager.Manager, m *metrics, c clock.PassiveClock, pause pauser) *nodeReconciler {
	return &nodeReconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), clock: c, metrics: m, pause: pause, absent: map[string]absence{},
	}
}

// register adds the reconciler to the manager; the AcceleratorNode CRD must be established.
func (r *nodeReconciler) register(mgr manager.Manager) error {
	gone := predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	sameName := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetName()}}}
	})
	return builder.ControllerManagedBy(mgr).Named("acceleratornode").
		For(metadata("AcceleratorNode", v1alpha1.GroupVersion.String()), builder.OnlyMetadata).
		Watches(metadata("Node", "v1"), sameName, builder.OnlyMetadata, builder.WithPredicates(gone)).
		Complete(r)
}

// Reconcile looks after one AcceleratorNode, which has the name of its Node.
func (r *nodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := metadata("AcceleratorNode", v1alpha1.GroupVersion.String())
	if err := r.client.Get(ctx, req.NamespacedName, node); err != nil {
		delete(r.absent, req.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	missing, err := r.missing(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	step := r.unretire
	if missing {
		step = r.prune
	}
	wait, err := step(ctx, node)
	return reconcile.Result{RequeueAfter: wait}, err
}

// missing asks the API server whether the Node is gone; if it is there, an earlier absence is forgotten.
func (r *nodeReconciler) missing(ctx context.Context, name string) (bool, error) {
	err := r.live.Get(ctx, client.ObjectKey{Name: name}, metadata("Node", "v1"))
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	delete(r.absent, name)
	if err != nil {
		return false, fmt.Errorf("look for Node %s: %w", name, err)
	}
	return false, nil
}

// prune deletes the object once its Node has been missing for the grace period; before, it says when to look again.
func (r *nodeReconciler) prune(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	now := r.clock.Now()
	seen := r.absent[node.Name].observe(now)
	r.absent[node.Name] = seen
	if wait := seen.wait(now); wait > 0 {
		return wait, nil
	}
	err := r.client.Delete(ctx, node, client.Preconditions{UID: ptr.To(node.UID)})
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("prune AcceleratorNode %s: %w", node.Name, err)
	}
	delete(r.absent, node.Name)
	r.metrics.prunedNodes.Inc()
	klog.FromContext(ctx).Info("pruned AcceleratorNode of a Node that is gone", "node", node.Name, "missingSince", seen.since)
	return 0, nil
}

// unretire removes the retirement that an uninstall set: a controller that runs while no uninstall does means that Fettle is
// installed, be it again or because the uninstall gave up. An admin's own retirement has another value and stays.
func (r *nodeReconciler) unretire(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	if node.Annotations[RetireAnnotation] != RetireByUninstall || node.DeletionTimestamp != nil {
		return 0, nil
	}
	if wait, err := r.pause.remaining(ctx); err != nil || wait > 0 {
		return wait, err
	}
	before := node.DeepCopy()
	delete(node.Annotations, RetireAnnotation)
	err := r.client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("take back the retirement of AcceleratorNode %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("took back the retirement that an uninstall had set", "node", node.Name)
	return 0, nil
}

// metadata is an empty object that reads as metadata only.
func metadata(kind, apiVersion string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: kind, APIVersion: apiVersion}}
}

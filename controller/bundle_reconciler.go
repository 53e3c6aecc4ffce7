// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/controller/certs"
)

// webhookConfig is the kind that the chart renders without a CA bundle.
type webhookConfig = admissionregistrationv1.ValidatingWebhookConfiguration

// bundleReconciler writes the authorities of the webhook's certificate into the configuration that the chart renders.
type bundleReconciler struct {
	client    client.Client
	namespace string
	state     func() *certs.State
	// changed carries a word from the keeper that the authorities changed; it has a buffer of one.
	changed <-chan event.TypedGenericEvent[*webhookConfig]
}

// register adds the reconciler to the manager.
func (r *bundleReconciler) register(mgr manager.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == WebhookConfiguration })
	return builder.ControllerManagedBy(mgr).Named("webhookconfiguration").
		For(&webhookConfig{}, builder.WithPredicates(ours)).
		WatchesRawSource(source.Channel(r.changed, &handler.TypedEnqueueRequestForObject[*webhookConfig]{})).
		Complete(r)
}

// Reconcile patches the bundle if it differs. The patch names only the bundle of our webhooks, so it does not undo a change that
// Helm makes at the same time.
func (r *bundleReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	state := r.state()
	if state == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	var config webhookConfig
	if err := r.client.Get(ctx, req.NamespacedName, &config); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := config.DeepCopy()
	if !certs.Inject(&config, r.namespace, Name, state.Bundle()) {
		return reconcile.Result{}, nil
	}
	if err := r.client.Patch(ctx, &config, client.StrategicMergeFrom(before), client.FieldOwner(Name)); err != nil {
		return reconcile.Result{}, fmt.Errorf("patch caBundle of ValidatingWebhookConfiguration %s: %w", req.Name, err)
	}
	klog.FromContext(ctx).Info("patched caBundle", "configuration", req.Name)
	return reconcile.Result{}, nil
}

// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/controller/certs"
	"github.com/fettle-dev/fettle/controller/names"
)

// Configuration is the kind that the chart renders without a CA bundle.
type Configuration = admissionregistrationv1.ValidatingWebhookConfiguration

// bundler writes the authorities of the webhook's certificate into the configuration that the chart renders.
type bundler struct {
	client    client.Client
	namespace string
	state     func() *certs.State
}

// Reconcile patches the bundle if it differs. The patch names only the bundle of our webhooks, so it does not undo a change that Helm
// makes at the same time.
func (b *bundler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	state := b.state()
	if state == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	var config Configuration
	if err := b.client.Get(ctx, req.NamespacedName, &config); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := config.DeepCopy()
	if !certs.Inject(&config, b.namespace, names.Controller, state.Bundle()) {
		return reconcile.Result{}, nil
	}
	if err := b.client.Patch(ctx, &config, client.StrategicMergeFrom(before), client.FieldOwner(names.Controller)); err != nil {
		return reconcile.Result{}, fmt.Errorf("patch caBundle of ValidatingWebhookConfiguration %s: %w", req.Name, err)
	}
	klog.FromContext(ctx).Info("Patched caBundle", "configuration", req.Name)
	return reconcile.Result{}, nil
}

// Cached keeps the manager's cache to the one configuration.
func Cached(byObject map[client.Object]cache.ByObject) {
	byObject[&Configuration{}] = cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", names.WebhookConfiguration)}
}

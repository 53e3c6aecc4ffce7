// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fettle-dev/fettle/controller/certs"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// Certificate keeps the webhook's certificate, and names its authorities in the webhook's configuration. It is the controller's part of the
// webhook; [Server] is a process of its own.
type Certificate struct {
	keeper  *certs.Keeper
	changed chan event.TypedGenericEvent[*Configuration]
	expiry  prometheus.Gauge
}

// NewCertificate returns the certificate of the webhook in a namespace. The client must not read from a cache.
func NewCertificate(live client.Client, c clock.WithTicker, namespace string) *Certificate {
	s := &Certificate{
		changed: make(chan event.TypedGenericEvent[*Configuration], 1),
		expiry:  metrics.Gauge("certificate_expiry_timestamp_seconds", "When the webhook's newest certificate ends."),
	}
	s.keeper = &certs.Keeper{
		Client: live, Clock: c, Changed: s.authoritiesChanged,
		Secret: client.ObjectKey{Namespace: namespace, Name: names.TLSSecret},
		// Earlier versions serve the webhook at the controller's Service: after a rollback they find a certificate that is theirs, too.
		Names: slices.Concat(hosts(names.Webhook, namespace), hosts(names.Controller, namespace)),
	}
	return s
}

// hosts returns the DNS names of a Service.
func hosts(service, namespace string) []string {
	host := service + "." + namespace + ".svc"
	return []string{host, host + ".cluster.local"}
}

// Register adds the keeper of the certificate to the manager; the leader runs it.
func (s *Certificate) Register(mgr manager.Manager) error { return mgr.Add(s.keeper) }

// authoritiesChanged queues the configuration, without waiting for the reconciler: if a request is queued already, the reconciler will
// read the newest state.
func (s *Certificate) authoritiesChanged(state *certs.State) {
	s.expiry.Set(float64(state.Expiry().Unix()))
	select {
	case s.changed <- event.TypedGenericEvent[*Configuration]{
		Object: &Configuration{ObjectMeta: metav1.ObjectMeta{Name: names.WebhookConfiguration}},
	}:
	default:
	}
}

// New returns the reconciler of the webhook's configuration. It has no queue if the chart renders none.
func New(services reconciler.Services, s *Certificate, served bool) reconciler.Row {
	row := reconciler.Row{
		Name: "ValidatingWebhookConfiguration", BeforeCRDs: true, Metrics: []prometheus.Collector{s.expiry},
	}
	if !served {
		return row
	}
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == names.WebhookConfiguration })
	row.Queues = []reconciler.Queue{{
		Name: "webhookconfiguration", DuringUninstall: true,
		Watches:    []reconciler.Watch{{Object: &Configuration{}, Predicates: []predicate.Predicate{named}}},
		Sources:    []source.Source{source.Channel(s.changed, &handler.TypedEnqueueRequestForObject[*Configuration]{})},
		Reconciler: &bundler{client: services.Client, live: services.Live, namespace: services.Namespace, state: s.keeper.State},
	}}
	return row
}

// Configuration is the kind that the chart renders without a CA bundle.
type Configuration = admissionregistrationv1.ValidatingWebhookConfiguration

// bundler writes the authorities of the webhook's certificate, and its path, into the configuration that the chart renders without them.
type bundler struct {
	client    client.Client
	live      client.Reader
	namespace string
	state     func() *certs.State
}

// Reconcile patches bundle and path if they differ. The patch names only these of our webhooks, so it does not undo a change that Helm
// makes at the same time.
func (b *bundler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	state := b.state()
	if state == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	var config Configuration
	if err := b.live.Get(ctx, req.NamespacedName, &config); err != nil { // the cache has no managedFields
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := config.DeepCopy()
	if certs.Inject(&config, b.namespace, names.Webhook, pathOf(state), state.Bundle()) {
		if err := b.client.Patch(ctx, &config, client.StrategicMergeFrom(before), client.FieldOwner(names.Controller)); err != nil {
			return reconcile.Result{}, fmt.Errorf("patch caBundle and path of ValidatingWebhookConfiguration %s: %w", req.Name, err)
		}
		klog.FromContext(ctx).Info("Patched caBundle and path", "configuration", req.Name)
	}
	if err := b.disown(ctx, &config); err != nil {
		return reconcile.Result{}, fmt.Errorf("patch managedFields of ValidatingWebhookConfiguration %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}

// disown takes the controller's name off what it wrote. The chart of an earlier version renders the path. Helm's server-side apply, in a
// rollback to that version, refuses to change a field that has another owner.
func (b *bundler) disown(ctx context.Context, config *Configuration) error {
	before := config.DeepCopy()
	ours := func(e metav1.ManagedFieldsEntry) bool { return e.Manager == names.Controller }
	config.ManagedFields = slices.DeleteFunc(config.ManagedFields, ours)
	if len(config.ManagedFields) == len(before.ManagedFields) {
		return nil
	}
	if len(config.ManagedFields) == 0 {
		config.ManagedFields = []metav1.ManagedFieldsEntry{{}} // an empty list would change nothing
	}
	return b.client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Cached keeps the manager's cache to the one configuration.
func Cached(byObject map[client.Object]cache.ByObject) {
	byObject[&Configuration{}] = cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", names.WebhookConfiguration)}
}

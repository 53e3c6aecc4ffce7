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
	"github.com/fettle-dev/fettle/controller/status"
)

// Certificate keeps the webhook's certificate, and names its authorities in the webhook's configurations. It is the controller's part of
// the webhook; [Server] is a process of its own.
type Certificate struct {
	keeper *certs.Keeper
	// changed and podsChanged queue the configurations.
	changed, podsChanged chan event.GenericEvent
	expiry               prometheus.Gauge
}

// NewCertificate returns the certificate of the webhook in a namespace. The client must not read from a cache.
func NewCertificate(live client.Client, c clock.WithTicker, namespace string) *Certificate {
	s := &Certificate{
		changed: make(chan event.GenericEvent, 1), podsChanged: make(chan event.GenericEvent, 1),
		expiry: metrics.Gauge("certificate_expiry_timestamp_seconds", "When the webhook's newest certificate ends."),
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

// authoritiesChanged queues the configurations, without waiting for the reconciler: if a request is queued already, the reconciler will
// read the newest state.
func (s *Certificate) authoritiesChanged(state *certs.State) {
	s.expiry.Set(float64(state.Expiry().Unix()))
	for _, c := range []struct {
		queue  chan event.GenericEvent
		object client.Object
	}{
		{s.changed, &Configuration{ObjectMeta: metav1.ObjectMeta{Name: names.WebhookConfiguration}}},
		{s.podsChanged, &PodsConfiguration{ObjectMeta: metav1.ObjectMeta{Name: names.PodsConfiguration}}},
	} {
		select {
		case c.queue <- event.GenericEvent{Object: c.object}:
		default:
		}
	}
}

// New returns the reconciler of the webhook's configurations. It has no queue for one that the chart does not render: reviewed says that
// objects are reviewed, mutated that pods are changed.
func New(services reconciler.Services, s *Certificate, reviewed, mutated bool) reconciler.Row {
	row := reconciler.Row{
		Name: "webhook configurations", BeforeCRDs: true, Metrics: []prometheus.Collector{s.expiry},
	}
	b := bundler{client: services.Client, live: services.Live, namespace: services.Namespace, state: s.keeper.State}
	if reviewed {
		b.empty, b.targets, b.path = func() client.Object { return &Configuration{} }, targets, pathOf
		row.Queues = append(row.Queues, b.queue("webhookconfiguration", names.WebhookConfiguration, s.changed))
	}
	if reviewed && mutated {
		b.empty, b.targets, b.path = func() client.Object { return &PodsConfiguration{} }, podsTargets, podsPathOf
		row.Queues = append(row.Queues, b.queue("podwebhookconfiguration", names.PodsConfiguration, s.podsChanged))
	}
	return row
}

// Configuration and PodsConfiguration are the kinds that the chart renders without a CA bundle.
type (
	Configuration     = admissionregistrationv1.ValidatingWebhookConfiguration
	PodsConfiguration = admissionregistrationv1.MutatingWebhookConfiguration
)

func targets(o client.Object) (out []*admissionregistrationv1.WebhookClientConfig) {
	if config, ok := o.(*Configuration); ok {
		for i := range config.Webhooks {
			out = append(out, &config.Webhooks[i].ClientConfig)
		}
	}
	return out
}

func podsTargets(o client.Object) (out []*admissionregistrationv1.WebhookClientConfig) {
	if config, ok := o.(*PodsConfiguration); ok {
		for i := range config.Webhooks {
			out = append(out, &config.Webhooks[i].ClientConfig)
		}
	}
	return out
}

// bundler writes the authorities of the webhook's certificate, and its path, into a configuration that the chart renders without them.
type bundler struct {
	client    client.Client
	live      client.Reader
	namespace string
	state     func() *certs.State
	// empty returns an object of the configuration's kind, targets whom its webhooks call, and path where.
	empty   func() client.Object
	targets func(client.Object) []*admissionregistrationv1.WebhookClientConfig
	path    func(*certs.State) string
}

// queue returns the queue of one configuration.
func (b bundler) queue(name, object string, changed chan event.GenericEvent) reconciler.Queue {
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == object })
	return reconciler.Queue{
		Name: name, DuringUninstall: true, Reconciler: &b,
		Watches: []reconciler.Watch{{Object: b.empty(), Predicates: []predicate.Predicate{named}}},
		Sources: []source.Source{source.Channel(changed, &handler.EnqueueRequestForObject{})},
	}
}

// Reconcile patches bundle and path if they differ. The patch names only these of our webhooks, so it does not undo a change that Helm
// makes at the same time.
func (b *bundler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	state := b.state()
	if state == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	config := b.empty()
	if err := b.live.Get(ctx, req.NamespacedName, config); err != nil { // the cache has no managedFields
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := status.Copy(config)
	if certs.Inject(b.targets(config), b.namespace, names.Webhook, b.path(state), state.Bundle()) {
		if err := b.client.Patch(ctx, config, client.StrategicMergeFrom(before), client.FieldOwner(names.Controller)); err != nil {
			return reconcile.Result{}, fmt.Errorf("patch caBundle and path of webhook configuration %s: %w", req.Name, err)
		}
		klog.FromContext(ctx).Info("Patched caBundle and path", "configuration", req.Name)
	}
	if err := b.disown(ctx, config); err != nil {
		return reconcile.Result{}, fmt.Errorf("patch managedFields of webhook configuration %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}

// disown takes the controller's name off what it wrote. The chart of an earlier version renders the path. Helm's server-side apply, in a
// rollback to that version, refuses to change a field that has another owner.
func (b *bundler) disown(ctx context.Context, config client.Object) error {
	before := status.Copy(config)
	ours := func(e metav1.ManagedFieldsEntry) bool { return e.Manager == names.Controller }
	kept := slices.DeleteFunc(config.GetManagedFields(), ours)
	if len(kept) == len(before.GetManagedFields()) {
		return nil
	}
	if len(kept) == 0 {
		kept = []metav1.ManagedFieldsEntry{{}} // an empty list would change nothing
	}
	config.SetManagedFields(kept)
	return b.client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Cached keeps the manager's cache to the two configurations.
func Cached(byObject map[client.Object]cache.ByObject) {
	byObject[&Configuration{}] = cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", names.WebhookConfiguration)}
	byObject[&PodsConfiguration{}] = cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", names.PodsConfiguration)}
}

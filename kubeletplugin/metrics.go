// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/pkg/record"
)

// metrics are the root package's metrics, with the prefix fettle_. Each other package registers its own.
type metrics struct {
	registry         *prometheus.Registry
	calls            *prometheus.HistogramVec
	refusals         *prometheus.CounterVec
	backgroundErrors *prometheus.CounterVec
	lastPublished    prometheus.Gauge
	droppedFeatures  *prometheus.GaugeVec
	incidents        *prometheus.CounterVec
}

// callBuckets returns buckets that resolve the range below 100 ms, which kubelet's own histogram does not.
func callBuckets() []float64 {
	return []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 4, 8, 16, 32, 45}
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fettle_claim_duration_seconds", Buckets: callBuckets(),
			Help: "Time to prepare or unprepare one claim, without the API server's GET, by operation and result.",
		}, []string{"operation", "result"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_claim_refusals_total", Help: "Claims that were refused at Prepare, by reason.",
		}, []string{"reason"}),
		backgroundErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_background_errors_total", Help: "Errors outside of kubelet's calls, by where they happened.",
		}, []string{"source"}),
		lastPublished: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_published_timestamp_seconds", Help: "When every slice in the API server was last seen to be up to date.",
		}),
		droppedFeatures: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_dropped_features", Help: "1 for each API feature that the cluster lacks and dropped from our slices.",
		}, []string{"feature"}),
		incidents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_claim_incidents_total", Help: "What happened to claims outside of kubelet's calls, by reason.",
		}, []string{"reason"}),
	}
	m.registry.MustRegister(m.incidents, m.calls, m.refusals, m.backgroundErrors, m.lastPublished, m.droppedFeatures,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Metrics returns the registry of the plugin's metrics. Rules and dashboards are compared with it.
func (p *Plugin) Metrics() *prometheus.Registry { return p.metrics.registry }

// observeCall records one claim's call; result is "ok", "refused" or "error".
func (m *metrics) observeCall(operation, result string, start time.Time) {
	m.calls.WithLabelValues(operation, result).Observe(time.Since(start).Seconds())
}

// observer turns reports of the engine into Events and metrics, and wakes the services that depend on them.
type observer struct {
	node    *status.NodeEvents
	metrics *metrics
	// settling says whether a GPU changes its form once claims give it back.
	settling func(name string) bool
	// review and claims are sent after a claim was released.
	review, claims notify.Signal
	// show writes to a claim's status what its devices have.
	show func(c *resourceapi.ResourceClaim, r *record.Record) error
}

var _ prepare.Observer = (*observer)(nil)

// Incident logs and counts an incident and writes an Event on the node.
func (o *observer) Incident(ctx context.Context, i prepare.Incident) {
	klog.FromContext(ctx).Info("Claim incident", "reason", i.Reason, "claim", klog.KRef(i.Namespace, i.Name), "claimUID", i.UID,
		"message", i.Message)
	o.metrics.incidents.WithLabelValues(i.Reason).Inc()
	kind := corev1.EventTypeWarning
	if i.Reason == prepare.ReasonSpecRestored || i.Reason == prepare.ReasonRolledBack {
		kind = corev1.EventTypeNormal
	}
	o.node.IncidentEvent(status.ClaimReference(i.Namespace, i.Name, i.UID), kind, i.Reason, i.Message)
}

// Held has the claim's status written if a process ended between its answer to kubelet and that.
func (o *observer) Held(ctx context.Context, c *resourceapi.ResourceClaim, r *record.Record) {
	if err := o.show(c, r); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell bitstreams and presets for the claim's status", "claim", klog.KObj(c))
	}
}

// DeletedChanged has the scanner withhold or publish devices.
func (o *observer) DeletedChanged() { o.review.Send() }

// Released wakes the services after an Unprepare that undid steps, or gave back a part of a device or one that is to change its form, since
// the state of devices may have changed.
func (o *observer) Released(r *record.Record) {
	changes := func(d record.Device) bool { return len(d.Edits.Made) > 0 || o.settling(d.Name) }
	if len(r.Steps) > 0 || slices.ContainsFunc(r.Devices, changes) {
		o.review.Send()
		o.claims.Send()
	}
}

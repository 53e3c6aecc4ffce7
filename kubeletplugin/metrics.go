// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/pkg/record"
)

// metrics are what the plugin itself exports, under the prefix fettle_. Each package beside it registers its own.
type metrics struct {
	registry         *prometheus.Registry
	calls            *prometheus.HistogramVec
	refusals         *prometheus.CounterVec
	backgroundErrors *prometheus.CounterVec
	lastPublished    prometheus.Gauge
	droppedFeatures  *prometheus.GaugeVec
	incidents        *prometheus.CounterVec
}

// callBuckets resolve what kubelet's own histogram lumps together: everything below 100 ms.
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
			Name: "fettle_published_timestamp_seconds", Help: "When the API server was last seen to hold every slice as wanted.",
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

// observeCall records one claim's call; result is "ok", "refused" or "error".
func (m *metrics) observeCall(operation, result string, start time.Time) {
	m.calls.WithLabelValues(operation, result).Observe(time.Since(start).Seconds())
}

// observer tells people and metrics what the engine reports, and wakes what depends on it.
type observer struct {
	node    *status.NodeEvents
	metrics *metrics
	// review and claims are sent after a claim gave something back.
	review, claims notify.Signal
}

var _ prepare.Observer = (*observer)(nil)

// Incident says what happened outside of kubelet's calls: an Event on the node, and a count by reason.
func (o *observer) Incident(ctx context.Context, i prepare.Incident) {
	klog.FromContext(ctx).Info("Happened to a claim", "reason", i.Reason, "claim", klog.KRef(i.Namespace, i.Name), "claimUID", i.UID,
		"message", i.Message)
	o.metrics.incidents.WithLabelValues(i.Reason).Inc()
	kind := corev1.EventTypeWarning
	if i.Reason == prepare.ReasonSpecRestored || i.Reason == prepare.ReasonRolledBack {
		kind = corev1.EventTypeNormal
	}
	o.node.OfClaim(i.Namespace, i.Name, i.UID, kind, i.Reason, i.Message)
}

// Released is called for a claim that was unprepared. Where it had steps the machine may look otherwise.
func (o *observer) Released(r *record.Record) {
	if len(r.Steps) > 0 {
		o.review.Send()
		o.claims.Send()
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/pkg/health"
)

// healthMetrics are the metrics of the devices' health.
type healthMetrics struct {
	devices  *prometheus.GaugeVec
	unknown  prometheus.Gauge
	events   *prometheus.CounterVec
	restarts prometheus.Counter
	errors   prometheus.Counter
}

func newHealthMetrics(m *metrics) *healthMetrics {
	h := &healthMetrics{
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_unhealthy", Help: "Devices that are not healthy, by state: degraded, unhealthy or quarantined.",
		}, []string{"state"}),
		unknown: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_devices_health_unknown", Help: "Devices of which a source of health has said nothing for too long.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_health_events_total", Help: "Events and increases of counters, ignored ones too, by source, code and severity.",
		}, []string{"source", "code", "severity"}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fettle_nvml_watch_restarts_total", Help: "How often the child that watches NVIDIA GPUs ended and was started again.",
		}),
		errors: m.backgroundErrors.WithLabelValues("health"),
	}
	m.registry.MustRegister(h.devices, h.unknown, h.events, h.restarts)
	return h
}

func (h *healthMetrics) seen(source, code string, severity health.Severity) {
	h.events.WithLabelValues(source, code, string(severity)).Inc()
}

func (h *healthMetrics) show(c verdicts) {
	count := map[health.State]int{}
	for _, s := range c.statuses {
		count[s.State]++
	}
	for state, label := range map[health.State]string{
		health.Worn: "degraded", health.Unhealthy: "unhealthy", health.Quarantined: "quarantined",
	} {
		h.devices.WithLabelValues(label).Set(float64(count[state]))
	}
	h.unknown.Set(float64(len(c.silent)))
}

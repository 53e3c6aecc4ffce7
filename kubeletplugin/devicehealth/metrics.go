// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/health"
)

// metrics are the metrics of the devices' health.
type metrics struct {
	devices  *prometheus.GaugeVec
	unknown  prometheus.Gauge
	events   *prometheus.CounterVec
	restarts prometheus.Counter
	errors   prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, errors *prometheus.CounterVec) *metrics {
	h := &metrics{
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_unhealthy", Help: "Devices that are not healthy, by state: degraded, unhealthy or quarantined.",
		}, []string{"state"}),
		unknown: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_devices_health_unknown", Help: "Devices without a report from a source of health for too long.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_health_events_total", Help: "Events and increases of counters, ignored ones too, by source, code and severity.",
		}, []string{"source", "code", "severity"}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fettle_nvml_watch_restarts_total", Help: "How often the child that watches NVIDIA GPUs ended and was started again.",
		}),
		errors: errors.WithLabelValues("health"),
	}
	registry.MustRegister(h.devices, h.unknown, h.events, h.restarts)
	return h
}

func (h *metrics) countEvent(source, code string, severity health.Severity) {
	h.events.WithLabelValues(source, code, string(severity)).Inc()
}

func (h *metrics) setStates(c inventory.Health) {
	count := map[health.State]int{}
	for _, s := range c.Statuses {
		count[s.State]++
	}
	for state, label := range map[health.State]string{
		health.Worn: "degraded", health.Unhealthy: "unhealthy", health.Quarantined: "quarantined",
	} {
		h.devices.WithLabelValues(label).Set(float64(count[state]))
	}
	h.unknown.Set(float64(len(c.Unknown)))
}

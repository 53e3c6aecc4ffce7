// SPDX-License-Identifier: Apache-2.0

// Package metrics makes the controller's metrics. Each belongs to the reconciler that sets it; controller-runtime adds those of its queues
// and clients to the same page.
package metrics

import "github.com/prometheus/client_golang/prometheus"

const (
	namespace = "fettle"
	subsystem = "controller"
)

// Gauge makes a gauge.
func Gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

// GaugeBy makes a gauge with labels.
func GaugeBy(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

// Counter makes a counter.
func Counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

// CounterBy makes a counter with labels.
func CounterBy(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

// Bool returns the value of a gauge that says yes or no.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what programming exports.
type metrics struct {
	programmings *prometheus.CounterVec
	seconds      prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		programmings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_fpga_programmings_total", Help: "Regions programmed, by what for (program, scrub, release) and what came of it.",
		}, []string{"why", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_fpga_program_seconds", Help: "Time that the kernel took to program a region.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 8, 16, 32, 64},
		}),
	}
	registry.MustRegister(m.programmings, m.seconds)
	return m
}

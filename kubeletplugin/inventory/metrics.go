// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Metrics are what a scanner exports.
type Metrics struct {
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors    *prometheus.CounterVec
	devices   *prometheus.GaugeVec
	withheld  *prometheus.GaugeVec
	problems  *prometheus.GaugeVec
	discovery prometheus.Histogram
}

// NewMetrics registers the metrics. The buckets are those of a look's time.
func NewMetrics(registry prometheus.Registerer, errors *prometheus.CounterVec, buckets []float64) *Metrics {
	m := &Metrics{
		Errors: errors,
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices", Help: "Devices found and whole, published or not, by kind.",
		}, []string{"kind"}),
		withheld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_withheld", Help: "Whole devices that are not published now, by kind.",
		}, []string{"kind"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_discovery_problems", Help: "What discovery found wrong with this machine, by reason.",
		}, []string{"reason"}),
		discovery: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_discovery_duration_seconds", Help: "Time of one look at the machine.", Buckets: buckets,
		}),
	}
	registry.MustRegister(m.devices, m.withheld, m.problems, m.discovery)
	return m
}

func (m *Metrics) observe(s *Snapshot) {
	devices, withheld := map[device.Kind]int{}, map[device.Kind]int{}
	for _, d := range s.Devices {
		devices[d.Kind]++
		if _, held := s.Withheld[d.Name]; held {
			withheld[d.Kind]++
		}
	}
	for _, kind := range device.Kinds() {
		m.devices.WithLabelValues(string(kind)).Set(float64(devices[kind]))
		m.withheld.WithLabelValues(string(kind)).Set(float64(withheld[kind]))
	}
	m.problems.Reset()
	for _, p := range s.Problems {
		m.problems.WithLabelValues(p.Reason).Inc()
	}
}

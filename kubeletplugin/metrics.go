// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fettle-dev/fettle/pkg/device"
)

// metrics are what the plugin exports, all under the prefix fettle_.
type metrics struct {
	registry         *prometheus.Registry
	calls            *prometheus.HistogramVec
	refusals         *prometheus.CounterVec
	programmings     *prometheus.CounterVec
	programSeconds   prometheus.Histogram
	devices          *prometheus.GaugeVec
	withheld         *prometheus.GaugeVec
	problems         *prometheus.GaugeVec
	prepared         prometheus.Gauge
	discovery        prometheus.Histogram
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
		programmings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_fpga_programmings_total", Help: "Regions programmed, by what for (program, scrub, release) and what came of it.",
		}, []string{"why", "result"}),
		programSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_fpga_program_seconds", Help: "Time that the kernel took to program a region.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 8, 16, 32, 64},
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_claim_refusals_total", Help: "Claims that were refused at Prepare, by reason.",
		}, []string{"reason"}),
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices", Help: "Devices found and whole, published or not, by kind.",
		}, []string{"kind"}),
		withheld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_devices_withheld", Help: "Whole devices that are not published now, by kind.",
		}, []string{"kind"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fettle_discovery_problems", Help: "What discovery found wrong with this machine, by reason.",
		}, []string{"reason"}),
		prepared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_prepared_claims", Help: "Claims that hold a record on this node.",
		}),
		discovery: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fettle_discovery_duration_seconds", Help: "Time of one look at the machine.", Buckets: callBuckets(),
		}),
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
	m.registry.MustRegister(m.incidents, m.calls, m.refusals, m.programmings, m.programSeconds,
		m.devices, m.withheld, m.problems, m.prepared, m.discovery, m.backgroundErrors,
		m.lastPublished, m.droppedFeatures, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observeView(v *view) {
	devices, withheld := map[device.Kind]int{}, map[device.Kind]int{}
	for _, d := range v.devices {
		devices[d.Kind]++
		if _, held := v.withheld[d.Name]; held {
			withheld[d.Kind]++
		}
	}
	for _, kind := range kinds() {
		m.devices.WithLabelValues(string(kind)).Set(float64(devices[kind]))
		m.withheld.WithLabelValues(string(kind)).Set(float64(withheld[kind]))
	}
	m.problems.Reset()
	for _, p := range v.problems {
		m.problems.WithLabelValues(p.Reason).Inc()
	}
}

// observeCall records one claim's call; result is "ok", "refused" or "error".
func (m *metrics) observeCall(operation, result string, start time.Time) {
	m.calls.WithLabelValues(operation, result).Observe(time.Since(start).Seconds())
}

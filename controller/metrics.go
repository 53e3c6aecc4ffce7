// SPDX-License-Identifier: Apache-2.0

package controller

import "github.com/prometheus/client_golang/prometheus"

// metrics are what the leader tells about its own work; controller-runtime adds its queue and client metrics to the same page.
type metrics struct {
	foreignClass       *prometheus.GaugeVec
	presetMissing      *prometheus.GaugeVec
	noExtendedResource *prometheus.GaugeVec
	refusedCRD         *prometheus.GaugeVec
	prunedNodes        prometheus.Counter
	certExpiry         prometheus.Gauge
	reviews            *prometheus.CounterVec
	bitstreams         *prometheus.CounterVec
	caches             *prometheus.CounterVec
}

// newMetrics makes the metrics and registers them; it fails when a metric of the same name is registered already.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fettle", Subsystem: "controller", Name: name, Help: help},
			[]string{label})
	}
	m := &metrics{
		foreignClass: gauge("deviceclass_not_managed",
			"1 while a DeviceClass of a shipped name exists that lacks the managed-by label and is therefore left alone.", "class"),
		presetMissing: gauge("deviceclass_preset_missing",
			"1 while devices of the DeviceClass need something from the node that no valid preset could give.", "class"),
		noExtendedResource: gauge("extended_resource_unsupported",
			"1 while the API server drops the extended resource name of the DeviceClass.", "class"),
		refusedCRD: gauge("crd_upgrade_refused",
			"1 while the CRD is not upgraded because objects may be stored in a version that this release does not know.", "crd"),
		prunedNodes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fettle_controller_pruned_nodes_total", Help: "AcceleratorNode objects deleted because their Node is gone.",
		}),
		certExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fettle_controller_certificate_expiry_timestamp_seconds", Help: "When the webhook's newest certificate ends.",
		}),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_controller_config_reviews_total",
			Help: "Admission reviews answered, by resource and verdict (allowed, denied, undecided).",
		}, []string{"resource", "verdict"}),
		bitstreams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_controller_bitstream_resolutions_total",
			Help: "References of bitstreams that were asked for, by kind of object and the condition Resolved's reason.",
		}, []string{"kind", "reason"}),
		caches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fettle_controller_kernel_cache_resolutions_total",
			Help: "References of kernel caches that were asked for, by kind of object and the condition Resolved's reason.",
		}, []string{"kind", "reason"}),
	}
	for _, c := range []prometheus.Collector{
		m.foreignClass, m.presetMissing, m.noExtendedResource, m.refusedCRD, m.prunedNodes, m.certExpiry, m.reviews, m.bitstreams, m.caches,
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// boolValue is a condition as a gauge's value.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

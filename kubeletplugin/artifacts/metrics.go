// SPDX-License-Identifier: Apache-2.0

package artifacts

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// storeMetrics say how full the node's store is. They count what is in it when the metrics are read. A node without a store has no values.
type storeMetrics struct {
	node       *Node
	bytes, max *prometheus.Desc
	free       *prometheus.Desc
}

// Metrics returns the metrics of the node's store.
func (n *Node) Metrics() prometheus.Collector {
	return &storeMetrics{
		node: n,
		bytes: prometheus.NewDesc("fettle_store_bytes",
			"Bytes in the node's store of files from registries, by state: pinned, evictable, partial (being fetched) or trash.",
			[]string{"state"}, nil),
		max:  prometheus.NewDesc("fettle_store_max_bytes", "The most that the node's store may take.", nil, nil),
		free: prometheus.NewDesc("fettle_store_disk_free_bytes", "Free bytes of the disk that has the node's store.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *storeMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.bytes, m.max, m.free} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *storeMetrics) Collect(out chan<- prometheus.Metric) {
	store, err := m.node.ifThere()
	if store == nil && err == nil {
		return
	}
	if err != nil {
		klog.Background().V(2).Info("Cannot open the node's store for the metrics", "reason", err)
		return
	}
	u, err := store.Usage()
	if err != nil {
		klog.Background().V(2).Info("Cannot count the node's store for the metrics", "reason", err)
		return
	}
	for state, n := range map[string]int64{
		"pinned": u.Pinned, "evictable": u.Bytes - u.Pinned, "partial": u.Partial, "trash": u.Trash,
	} {
		out <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(n), state)
	}
	out <- prometheus.MustNewConstMetric(m.max, prometheus.GaugeValue, float64(u.MaxBytes))
	out <- prometheus.MustNewConstMetric(m.free, prometheus.GaugeValue, float64(u.Free))
}

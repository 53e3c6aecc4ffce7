// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// shareMetrics says of each shared device how many shares it has, how many claims have, and how much memory these were granted. It reads
// the records of claims when the metrics are read.
type shareMetrics struct {
	node                   string
	records                *record.Store
	errors                 *prometheus.CounterVec
	decided                func() *decision
	shares, taken, granted *prometheus.Desc
}

func newShareMetrics(c *Config, decided func() *decision) *shareMetrics {
	labels := []string{"device"}
	return &shareMetrics{
		node: c.Node, records: c.Records, errors: c.Errors, decided: decided,
		shares:  prometheus.NewDesc("fettle_device_shares", "Shares of a device that several claims may have.", labels, nil),
		taken:   prometheus.NewDesc("fettle_device_shares_held", "Shares of a device that claims have.", labels, nil),
		granted: prometheus.NewDesc("fettle_device_granted_memory_bytes", "Memory of a device that was granted to claims.", labels, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *shareMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.shares, m.taken, m.granted} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *shareMetrics) Collect(out chan<- prometheus.Metric) {
	d := m.decided()
	if d == nil {
		return
	}
	for _, c := range d.sorted() {
		for i := range c.division.Devices {
			if one := &c.division.Devices[i]; one.Shared {
				m.collect(one, out)
			}
		}
	}
}

func (m *shareMetrics) collect(d *device.Device, out chan<- prometheus.Metric) {
	shares := d.Capacity[device.CapacityShares].Value
	taken, granted, err := m.count(d)
	if err != nil {
		m.errors.WithLabelValues("partitions").Inc()
		return
	}
	for desc, n := range map[*prometheus.Desc]int64{m.shares: shares.Value(), m.taken: taken, m.granted: granted} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), d.Name)
	}
}

// count counts the shares of a device that claims have, and their memory.
func (m *shareMetrics) count(d *device.Device) (shares, memory int64, err error) {
	pool := device.PoolName(m.node, d.Kind)
	holders, err := m.records.Holders(pool, d.Name)
	if err != nil {
		return 0, 0, err
	}
	for _, uid := range holders {
		r, err := m.records.Load(uid)
		if err != nil {
			continue // it was released meanwhile, or its record is damaged, which is reported elsewhere
		}
		for i := range r.Devices {
			if one := &r.Devices[i]; one.Pool == pool && one.Name == d.Name && one.ShareID != "" && !one.AdminAccess {
				shares, memory = shares+1, memory+one.Memory
			}
		}
	}
	return shares, memory, nil
}

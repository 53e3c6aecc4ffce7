// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/podresources"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// claimInfo is the metric that says which claim, pod and container have each device, so that metrics of other exporters can be joined with
// them. It reads the claims' records, and asks kubelet for the containers, when the metrics are read.
type claimInfo struct {
	node    string
	records func() ([]*record.Record, error)
	// containers returns the containers that have each device. Nil: not asked.
	containers func(ctx context.Context) (map[podresources.Device][]podresources.Container, error)
	holder     *inventory.Holder
	errors     *prometheus.CounterVec
	desc       *prometheus.Desc
}

func newClaimInfo(r *Reporter) *claimInfo {
	return &claimInfo{
		node: r.Node, containers: r.Containers, holder: r.Holder, errors: r.Errors,
		records: func() ([]*record.Record, error) {
			uids, err := r.Records.UIDs()
			if err != nil {
				return nil, err
			}
			return r.records(uids)
		},
		desc: prometheus.NewDesc("fettle_device_claim_info",
			"1 for each device that a claim holds and each container that has it. Pod and container are empty if kubelet names none.",
			[]string{"node", "device", "pci_bus_id", "uuid", "namespace", "claim", "pod", "container"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *claimInfo) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector.
func (c *claimInfo) Collect(out chan<- prometheus.Metric) {
	records, err := c.records()
	if err != nil {
		klog.Background().V(2).Info("Cannot read which claims have devices, for the metrics", "reason", err)
		c.errors.WithLabelValues("claiminfo").Inc()
		return
	}
	var have map[podresources.Device][]podresources.Container
	if c.containers != nil && len(records) > 0 {
		if have, err = c.containers(context.Background()); err != nil { // it has a limit of its own
			klog.Background().V(2).Info("Metrics of devices have no pods", "reason", err)
			c.errors.WithLabelValues("claiminfo").Inc()
		}
	}
	snapshot, _ := c.holder.Get()
	for _, labels := range claimLabels(c.node, snapshot, records, have) {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, labels[:]...)
	}
}

// infoLabels are the values of the labels, in their order.
type infoLabels [8]string

// claimLabels returns the labels of each device that a claim holds, once for each container that has it. Access for a look holds nothing
// and is left out: it is what monitoring itself has of all devices.
func claimLabels(
	node string, s *inventory.Snapshot, records []*record.Record, have map[podresources.Device][]podresources.Container,
) []infoLabels {
	var out []infoLabels
	for _, r := range records {
		for i := range r.Devices {
			d := &r.Devices[i]
			if d.AdminAccess || r.Phase != record.Prepared {
				continue
			}
			address, uuid := identity(s, d)
			containers := have[podresources.Device{Namespace: r.Namespace, Claim: r.Name, Pool: d.Pool, Name: d.Name, ShareID: d.ShareID}]
			if len(containers) == 0 {
				containers = []podresources.Container{{}}
			}
			for _, c := range containers {
				out = append(out, infoLabels{node, d.Name, address, uuid, r.Namespace, r.Name, c.Pod, c.Name})
			}
		}
	}
	slices.SortFunc(out, func(a, b infoLabels) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(out) // a claim may have several shares of one device
}

// identity returns what other exporters know a device by. Both are empty for a device that left, or that has none.
func identity(s *inventory.Snapshot, d *record.Device) (address, uuid string) {
	if s == nil {
		return "", ""
	}
	found, _ := s.Find(d.Kind(), d.Name)
	return device.StringOf(found.Attributes[device.AttributePCIAddress]), device.StringOf(found.Attributes[device.AttributeUUID])
}

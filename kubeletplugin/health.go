// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/pkg/device"
)

// healthInterval is how often health is sent although nothing changed: kubelet forgets it after 30 s.
const healthInterval = 10 * time.Second

// watchHealth sends the health of all devices now, after every change, and every few seconds. A device that left since the stream
// began is reported as unhealthy, so that the pod which still holds it shows why it fails.
func watchHealth(ctx context.Context, node string, l *latest, reports chan<- kubeletplugin.DeviceHealthReport) error {
	known := map[kubeletplugin.DeviceHealth]bool{}
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		v, changed := l.get()
		if v != nil {
			select {
			case <-ctx.Done():
				return nil
			case reports <- healthReport(node, v, known, time.Now()):
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

// healthReport reports every device of the view as healthy and every other known one as gone. It adds to known.
func healthReport(node string, v *view, known map[kubeletplugin.DeviceHealth]bool, now time.Time) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	present := map[kubeletplugin.DeviceHealth]bool{}
	for _, d := range v.devices {
		id := healthID(node, d.Kind, d.Name)
		present[id], known[id] = true, true
		healthy := id
		healthy.Health, healthy.LastUpdated = kubeletplugin.HealthStatusHealthy, now
		report.Devices = append(report.Devices, healthy)
	}
	left := slices.SortedFunc(maps.Keys(known), func(a, b kubeletplugin.DeviceHealth) int {
		return cmp.Or(cmp.Compare(a.PoolName, b.PoolName), cmp.Compare(a.DeviceName, b.DeviceName))
	})
	for _, gone := range left {
		if present[gone] {
			continue
		}
		gone.Health, gone.LastUpdated = kubeletplugin.HealthStatusUnhealthy, now
		gone.Message = "the device or its driver left this node, see AcceleratorNode " + node
		report.Devices = append(report.Devices, gone)
	}
	return report
}

func healthID(node string, kind device.Kind, name string) kubeletplugin.DeviceHealth {
	return kubeletplugin.DeviceHealth{PoolName: poolName(node, kind), DeviceName: name}
}

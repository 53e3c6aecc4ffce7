// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
)

// healthInterval is how often health is sent although nothing changed: kubelet forgets it after 30 s.
const healthInterval = 10 * time.Second

// Watch sends the health of all devices now, after every change, and every few seconds. A device that left since the stream
// began is reported as unhealthy, so that the pod which still holds it shows why it fails.
//
// Each report compares the times of the sources' last reports itself, so that health becomes unknown even if the rest of the monitor hangs.
func (m *Monitor) Watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	known := map[kubeletplugin.DeviceHealth]bool{}
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		v, changed := m.Holder.Get()
		if v != nil {
			now := time.Now()
			select {
			case <-ctx.Done():
				return nil
			case reports <- healthReport(m.Node, v, m.sources.overdue(now), known, now):
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

// healthReport reports every device of the snapshot, every one that left while a claim holds it, and every other known one as gone. It
// adds to known.
func healthReport(
	node string, v *inventory.Snapshot, overdue map[string]string, known map[kubeletplugin.DeviceHealth]bool, now time.Time,
) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	present := map[kubeletplugin.DeviceHealth]bool{}
	add := func(kind device.Kind, name, whole string) {
		id := healthID(node, kind, name)
		present[id], known[id] = true, true
		one := id
		one.LastUpdated = now
		one.Health, one.Message = healthOf(v.Health.Statuses[name], cmp.Or(overdue[name], overdue[whole]))
		report.Devices = append(report.Devices, one)
	}
	for i := range v.Devices {
		add(v.Devices[i].Kind, v.Devices[i].Name, v.Devices[i].Parent) // the sources report whole devices
	}
	for _, name := range slices.Sorted(maps.Keys(v.Health.Statuses)) {
		if s := v.Health.Statuses[name]; s.Gone && !present[healthID(node, s.Kind, name)] {
			add(s.Kind, name, "")
		}
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

// healthOf returns the health that is reported to kubelet. A degraded device serves the pod that has it, so it is healthy with a message. A
// failure stays reported when its source stops reporting.
func healthOf(s health.Status, overdue string) (kubeletplugin.HealthStatus, string) {
	switch {
	case s.State == health.Unhealthy || s.State == health.Quarantined:
		return kubeletplugin.HealthStatusUnhealthy, s.Message
	case overdue != "":
		return kubeletplugin.HealthStatusUnknown, overdue
	case s.State == health.Worn:
		return kubeletplugin.HealthStatusHealthy, "degraded: " + s.Message
	default:
		return kubeletplugin.HealthStatusHealthy, ""
	}
}

func healthID(node string, kind device.Kind, name string) kubeletplugin.DeviceHealth {
	return kubeletplugin.DeviceHealth{PoolName: device.PoolName(node, kind), DeviceName: name}
}

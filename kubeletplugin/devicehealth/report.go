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
// What the sources were last heard of is asked for at each report: where whatever should note their silence hangs itself, health
// becomes unknown all the same.
func (k *Keeper) Watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	known := map[kubeletplugin.DeviceHealth]bool{}
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		v, changed := k.Holder.Get()
		if v != nil {
			now := time.Now()
			select {
			case <-ctx.Done():
				return nil
			case reports <- healthReport(k.Node, v, k.pulse.silent(now), known, now):
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

// healthReport reports every device of the view, every one that left while a claim holds it, and every other known one as gone. It
// adds to known.
func healthReport(
	node string, v *inventory.Snapshot, silent map[string]string, known map[kubeletplugin.DeviceHealth]bool, now time.Time,
) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	present := map[kubeletplugin.DeviceHealth]bool{}
	add := func(kind device.Kind, name string) {
		id := healthID(node, kind, name)
		present[id], known[id] = true, true
		one := id
		one.LastUpdated = now
		one.Health, one.Message = healthOf(v.Health.Statuses[name], silent[name])
		report.Devices = append(report.Devices, one)
	}
	for i := range v.Devices {
		add(v.Devices[i].Kind, v.Devices[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(v.Health.Statuses)) {
		if s := v.Health.Statuses[name]; s.Gone && !present[healthID(node, s.Kind, name)] {
			add(s.Kind, name)
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

// healthOf is what kubelet is told. A degraded device serves the pod that has it, so it is healthy with a message. Bad news stays
// news when its source falls silent.
func healthOf(s health.Status, silent string) (kubeletplugin.HealthStatus, string) {
	switch {
	case s.State == health.Unhealthy || s.State == health.Quarantined:
		return kubeletplugin.HealthStatusUnhealthy, s.Message
	case silent != "":
		return kubeletplugin.HealthStatusUnknown, silent
	case s.State == health.Worn:
		return kubeletplugin.HealthStatusHealthy, "degraded: " + s.Message
	default:
		return kubeletplugin.HealthStatusHealthy, ""
	}
}

func healthID(node string, kind device.Kind, name string) kubeletplugin.DeviceHealth {
	return kubeletplugin.DeviceHealth{PoolName: inventory.PoolName(node, kind), DeviceName: name}
}

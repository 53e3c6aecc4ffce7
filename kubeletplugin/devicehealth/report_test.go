// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

func TestHealthReport(t *testing.T) {
	now := time.Unix(1000, 0)
	known := map[kubeletplugin.DeviceHealth]bool{}
	healthy := func(pool, name string) kubeletplugin.DeviceHealth {
		return kubeletplugin.DeviceHealth{
			PoolName: nodefixture.Node + pool, DeviceName: name, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: now,
		}
	}
	gone := func(pool, name string) kubeletplugin.DeviceHealth {
		return kubeletplugin.DeviceHealth{
			PoolName: nodefixture.Node + pool, DeviceName: name, Health: kubeletplugin.HealthStatusUnhealthy, LastUpdated: now,
			Message: "the device or its driver left this node, see AcceleratorNode node-1",
		}
	}
	withheld := nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0), nodefixture.SSD("ssd0"))
	withheld.Withheld["ssd0"] = "is being emptied"
	zeroth, first, disk := nodefixture.GPU("gpu0", 0), nodefixture.GPU("gpu1", 1), nodefixture.SSD("ssd0")
	steps := []struct {
		name string
		view *inventory.Snapshot
		want []kubeletplugin.DeviceHealth
	}{
		{"nothing yet", nodefixture.SnapshotWith(), nil},
		{"all there", nodefixture.SnapshotWith(first, zeroth, disk), []kubeletplugin.DeviceHealth{
			healthy("/gpu", "gpu1"), healthy("/gpu", "gpu0"), healthy("/host", "ssd0"),
		}},
		{"some left", nodefixture.SnapshotWith(disk), []kubeletplugin.DeviceHealth{
			healthy("/host", "ssd0"), gone("/gpu", "gpu0"), gone("/gpu", "gpu1"),
		}},
		{"one came back, one is withheld", withheld, []kubeletplugin.DeviceHealth{
			healthy("/gpu", "gpu0"), healthy("/host", "ssd0"), gone("/gpu", "gpu1"),
		}},
	}
	for _, step := range steps {
		got := healthReport(nodefixture.Node, step.view, nil, known, now)
		if diff := cmp.Diff(step.want, got.Devices, cmpopts.EquateComparable(time.Time{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// TestHealthOfDevices: kubelet is told what keeps a pod from its work, and what is not known.
func TestHealthOfDevices(t *testing.T) {
	now := time.Unix(1000, 0)
	v := nodefixture.SnapshotWith(nodefixture.GPU("degraded", 0), nodefixture.GPU("failed", 1), nodefixture.GPU("healthy", 2),
		nodefixture.GPU("silent", 3), nodefixture.GPU("silent-degraded", 4), nodefixture.GPU("silent-failed", 5))
	v.Health.Statuses = map[string]health.Status{
		"degraded":        {State: health.Worn, Message: "xid 94"},
		"failed":          {State: health.Unhealthy, Message: "xid 79"},
		"silent-degraded": {State: health.Worn, Message: "xid 94"},
		"silent-failed":   {State: health.Quarantined, Message: "programming failed"},
		"left":            {State: health.Unhealthy, Message: "gone", Kind: device.KindGPU, Gone: true},
		"left-unheld":     {State: health.Quarantined, Message: "undo failed", Kind: device.KindGPU},
	}
	silent := map[string]string{"silent": "nvml says nothing", "silent-degraded": "nvml says nothing", "silent-failed": "nvml says nothing"}
	want := map[string]string{
		"degraded": "Healthy degraded: xid 94", "failed": "Unhealthy xid 79", "healthy": "Healthy ", "silent": "Unknown nvml says nothing",
		"silent-degraded": "Unknown nvml says nothing", "silent-failed": "Unhealthy programming failed", "left": "Unhealthy gone",
	}
	got := map[string]string{}
	for _, d := range healthReport(nodefixture.Node, v, silent, map[kubeletplugin.DeviceHealth]bool{}, now).Devices {
		if got[d.DeviceName] != "" || d.PoolName != nodefixture.Node+"/gpu" || !d.LastUpdated.Equal(now) {
			t.Errorf("device %+v", d)
		}
		got[d.DeviceName] = string(d.Health) + " " + d.Message
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
}

// TestWatchHealth sends at once, again after a change, and ends with its context.
func TestWatchHealth(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k := &Monitor{Config: Config{Node: nodefixture.Node, Holder: inventory.NewHolder()}, sources: newSources()}
	l := k.Holder
	reports := make(chan kubeletplugin.DeviceHealthReport)
	ended := make(chan error, 1)
	go func() { ended <- k.Watch(ctx, reports) }()
	l.Set(nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0)))
	for _, want := range []int{1, 2} {
		if got := receive(t, reports); len(got.Devices) != want {
			t.Errorf("%d devices, want %d", len(got.Devices), want)
		}
		l.Set(nodefixture.SnapshotWith(nodefixture.GPU("gpu0", 0), nodefixture.GPU("gpu1", 1)))
	}
	cancel()
	if err := receive(t, ended); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

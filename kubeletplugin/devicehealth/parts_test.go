// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"errors"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// divide shows the first GPU of a ward as one part, and returns both.
func (w *ward) divide() (whole, part device.Device) {
	w.t.Helper()
	v := *w.look()
	whole, part = v.Devices[0], v.Devices[0]
	part.Name, part.Parent = whole.Name+"-mig-1g-0", whole.Name
	v.Physical = []discover.Physical{{Device: whole}}
	v.Devices[0] = part
	w.Holder.Set(&v)
	return whole, part
}

// TestPartOfFailedGPU: what is wrong with a part itself hides nothing worse of the GPU that it is a part of.
func TestPartOfFailedGPU(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	whole, part := w.divide()
	check.Must(t, w.ledger.Report(health.Report{
		Device: part.Name, Source: health.SourceRival, Readings: []health.Reading{{Code: health.RivalPlugin, Kind: health.Level, Value: 1}},
	}))
	r := nodefixture.Result("gpu", device.KindGPU, part.Name)
	asks := func() error {
		return w.Check(nodefixture.Allocated("u1", r),
			&claim.Result{Request: "gpu", Kind: device.KindGPU, Pool: r.Pool, Device: part.Name})
	}
	wants := func(state health.State, effect resourceapi.DeviceTaintEffect, told kubeletplugin.HealthStatus) {
		t.Helper()
		w.Refresh()
		v, _ := w.Holder.Get()
		s := v.Health.Statuses[part.Name]
		if taint := inventory.Taint(s, false); s.State != state || taint.Effect != effect {
			t.Errorf("the part is %s with taint %s, want %s with %s", s.State, taint.Effect, state, effect)
		}
		for _, d := range healthReport(w.Node, v, nil, map[kubeletplugin.DeviceHealth]bool{}, time.Unix(0, 0)).Devices {
			if d.DeviceName == part.Name && d.Health != told {
				t.Errorf("kubelet is told that the part is %s, want %s", d.Health, told)
			}
		}
	}
	check.Must(t, asks())
	wants(health.Worn, resourceapi.DeviceTaintEffectNoSchedule, kubeletplugin.HealthStatusHealthy)
	check.Must(t, w.ledger.Happened(health.Xid(whole.Name, nvml.Event{Xid: 79})))
	if err := asks(); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("a claim may have a part of a GPU that fell off the bus: %v", err)
	}
	wants(health.Unhealthy, resourceapi.DeviceTaintEffectNoExecute, kubeletplugin.HealthStatusUnhealthy)
	check.Must(t, w.ledger.Quarantine(device.KindGPU, part.Name, health.Cause{Reason: reasonUndoFailed}))
	wants(health.Quarantined, resourceapi.DeviceTaintEffectNoSchedule, kubeletplugin.HealthStatusUnhealthy)
}

// TestRivalOfDividedGPU: what a GPU had against it while it was whole ends when its cause does, although only its parts are handed out now.
func TestRivalOfDividedGPU(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	a := w.server()
	a.has(nodeWith("nvidia.com/gpu=8"))
	check.Must(t, w.reportConflicts(t.Context()))
	whole, part := w.divide()
	check.Must(t, w.reportConflicts(t.Context()))
	a.has(nodeWith())
	check.Must(t, w.reportConflicts(t.Context()))
	w.Refresh()
	v, _ := w.Holder.Get()
	if statuses := v.Health.Statuses; len(statuses) > 0 {
		t.Errorf("no other driver is left, and not healthy: %v (%s is a part of %s)", statuses, part.Name, whole.Name)
	}
}

// TestSilentGPUOfParts: nothing is known of a part while nothing is heard of the GPU.
func TestSilentGPUOfParts(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	whole, part := w.divide()
	v, _ := w.Holder.Get()
	silent := map[string]string{whole.Name: "nvml says nothing"}
	for _, d := range healthReport(w.Node, v, silent, map[kubeletplugin.DeviceHealth]bool{}, time.Unix(0, 0)).Devices {
		if d.DeviceName == part.Name && (d.Health != kubeletplugin.HealthStatusUnknown || d.Message != silent[whole.Name]) {
			t.Errorf("kubelet is told that the part is %s: %s", d.Health, d.Message)
		}
	}
}

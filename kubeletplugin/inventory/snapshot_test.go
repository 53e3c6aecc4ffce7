// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
)

func TestFindLooksAtTheKind(t *testing.T) {
	other := ssd("same")
	v := snapshotWith(gpu("same", 1), other)
	got, ok := v.Find(device.KindHost, "same")
	if !ok || got.Kind != device.KindHost {
		t.Errorf("found %+v, %v", got, ok)
	}
	if _, ok := v.Find(device.KindFPGA, "same"); ok {
		t.Error("found in a kind that it does not have")
	}
}

func TestPublishedLeavesOutWithheld(t *testing.T) {
	v := snapshotWith(gpu("a", 1), gpu("b", 2), ssd("c"))
	v.Withheld["a"] = "because"
	if got := v.Published(device.KindGPU); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("published %+v", got)
	}
}

func TestHolder(t *testing.T) {
	l := NewHolder()
	v, first := l.Get()
	if v != nil {
		t.Errorf("view %+v before the first look", v)
	}
	if !l.Set(snapshotWith(gpu("a", 1))) {
		t.Error("the first view is no change")
	}
	if !closed(first) {
		t.Error("who waited was not woken")
	}
	_, second := l.Get()
	if l.Set(snapshotWith(gpu("a", 1))) || closed(second) {
		t.Error("an equal view counts as a change")
	}
	if !l.Set(snapshotWith(gpu("a", 2))) || !closed(second) {
		t.Error("another minor number counts as no change")
	}
}

// TestDraining: where the API server keeps no taints, no device is published while pods are to go. Evicted ones would come back for good.
func TestDraining(t *testing.T) {
	for _, test := range []struct {
		draining, kept bool
		withheld       int
	}{{true, false, 2}, {true, true, 0}, {false, false, 0}} {
		s := &Snapshot{
			Devices:  []device.Device{{Name: "a"}, {Name: "b"}},
			Withheld: map[string]string{}, Upgrade: resourceapi.DeviceTaintEffectNoSchedule, Draining: test.draining,
		}
		with := s.With(Health{TaintsKept: test.kept})
		if len(with.Withheld) != test.withheld || len(s.Withheld) > 0 {
			t.Errorf("%+v: withheld %v, before %v", test, with.Withheld, s.Withheld)
		}
	}
	if with := (&Snapshot{Devices: []device.Device{{Name: "a"}}, Draining: true}).With(Health{}); len(with.Withheld) != 1 {
		t.Errorf("withheld %v", with.Withheld)
	}
}

// TestHolderHealth: what was seen and the devices' health come from different places and are shown together.
func TestHolderHealth(t *testing.T) {
	l := NewHolder()
	bad := Health{Statuses: map[string]health.Status{"a": {State: health.Unhealthy, Message: "xid 79"}}}
	_, first := l.Get()
	if !l.SetHealth(bad) || closed(first) {
		t.Error("health without a look is no view")
	}
	seen := snapshotWith(gpu("a", 1), gpu("b", 2))
	seen.Withheld["b"] = reason
	l.Set(seen)
	v, changed := l.Get()
	if want := map[string]string{"a": "xid 79", "b": reason}; !maps.Equal(v.Withheld, want) || len(seen.Withheld) != 1 {
		t.Errorf("withheld %v, want %v; and what was seen is not changed: %v", v.Withheld, want, seen.Withheld)
	}
	if l.SetHealth(bad) || closed(changed) {
		t.Error("the same health counts as a change")
	}
	bad.TaintsKept = true
	if !l.SetHealth(bad) || !closed(changed) {
		t.Error("taints that are kept count as no change")
	}
	v, changed = l.Get()
	if len(v.Withheld) != 1 || len(v.Published(device.KindGPU)) != 1 || v.Published(device.KindGPU)[0].Name != "a" {
		t.Errorf("withheld %v, published %v", v.Withheld, v.Published(device.KindGPU))
	}
	if l.Set(snapshotWith(gpu("a", 1))); !closed(changed) {
		t.Error("who waited was not woken")
	}
	if v, _ := l.Get(); v.Health.Statuses["a"].Message != "xid 79" {
		t.Error("a new look took the health with it")
	}
}

// reason is why a device is withheld.
const reason = "is being emptied"

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestUnusableDevice keeps back one device, never the others.
func TestUnusableDevice(t *testing.T) {
	bad := ssd("bad")
	bad.Edits.Mounts[0].HostPath = "/mnt/disks/\x7f"
	v := snapshotWith(gpu("a", 1), bad)
	withholdUnusable(v)
	if got := fmt.Sprint(v.Withheld); !strings.Contains(got, "bad") || len(v.Withheld) != 1 || len(v.Problems) != 1 {
		t.Errorf("withheld %s, problems %v", got, v.Problems)
	}
}

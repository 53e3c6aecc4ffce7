// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
)

func TestFindLooksAtTheKind(t *testing.T) {
	other := ssd("same")
	v := viewWith(gpu("same", 1), other)
	got, ok := v.Find(device.KindHost, "same")
	if !ok || got.Kind != device.KindHost {
		t.Errorf("found %+v, %v", got, ok)
	}
	if _, ok := v.Find(device.KindFPGA, "same"); ok {
		t.Error("found in a kind that it does not have")
	}
}

func TestPublishedLeavesOutWithheld(t *testing.T) {
	v := viewWith(gpu("a", 1), gpu("b", 2), ssd("c"))
	v.withheld["a"] = "because"
	if got := v.published(device.KindGPU); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("published %+v", got)
	}
}

func TestLatest(t *testing.T) {
	l := newLatest()
	v, first := l.get()
	if v != nil {
		t.Errorf("view %+v before the first look", v)
	}
	if !l.set(viewWith(gpu("a", 1))) {
		t.Error("the first view is no change")
	}
	if !closed(first) {
		t.Error("who waited was not woken")
	}
	_, second := l.get()
	if l.set(viewWith(gpu("a", 1))) || closed(second) {
		t.Error("an equal view counts as a change")
	}
	if !l.set(viewWith(gpu("a", 2))) || !closed(second) {
		t.Error("another minor number counts as no change")
	}
}

// TestLatestHealth: what was seen and the devices' health come from different places and are shown together.
func TestLatestHealth(t *testing.T) {
	l := newLatest()
	bad := verdicts{statuses: map[string]health.Status{"a": {State: health.Unhealthy, Message: "xid 79"}}}
	_, first := l.get()
	if !l.setHealth(bad) || closed(first) {
		t.Error("health without a look is no view")
	}
	seen := viewWith(gpu("a", 1), gpu("b", 2))
	seen.withheld["b"] = beingEmptied
	l.set(seen)
	v, changed := l.get()
	if want := map[string]string{"a": "xid 79", "b": beingEmptied}; !maps.Equal(v.withheld, want) || len(seen.withheld) != 1 {
		t.Errorf("withheld %v, want %v; and what was seen is not changed: %v", v.withheld, want, seen.withheld)
	}
	if l.setHealth(bad) || closed(changed) {
		t.Error("the same health counts as a change")
	}
	bad.taintsKept = true
	if !l.setHealth(bad) || !closed(changed) {
		t.Error("taints that are kept count as no change")
	}
	v, changed = l.get()
	if len(v.withheld) != 1 || len(v.published(device.KindGPU)) != 1 || v.published(device.KindGPU)[0].Name != "a" {
		t.Errorf("withheld %v, published %v", v.withheld, v.published(device.KindGPU))
	}
	if l.set(viewWith(gpu("a", 1))); !closed(changed) {
		t.Error("who waited was not woken")
	}
	if v, _ := l.get(); v.health.statuses["a"].Message != "xid 79" {
		t.Error("a new look took the health with it")
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"testing"

	"github.com/fettle-dev/fettle/pkg/device"
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

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

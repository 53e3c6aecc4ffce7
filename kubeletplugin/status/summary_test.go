// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

func TestHeldDevices(t *testing.T) {
	records := []*record.Record{
		{Devices: []record.Device{{Pool: "n/gpu", Name: "a"}, {Pool: "n/host", Name: "a"}, {Pool: "n/gpu", Name: "b", AdminAccess: true}}},
		{Devices: []record.Device{{Pool: "n/gpu", Name: "a"}, {Pool: "n/gpu", Name: "c"}}},
	}
	want := map[string]bool{"n/gpu/a": true, "n/host/a": true, "n/gpu/c": true}
	if diff := cmp.Diff(want, heldDevices(records)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// TestCountUse: a device is free if nobody has it, nothing keeps pods away, and its card has as much left as it takes.
func TestCountUse(t *testing.T) {
	plain := func(name string) resourceapi.Device { return resourceapi.Device{Name: name} }
	tainted := func(name string, effect resourceapi.DeviceTaintEffect) resourceapi.Device {
		return resourceapi.Device{Name: name, Taints: []resourceapi.DeviceTaint{{Key: "k", Effect: effect}}}
	}
	part := func(name, card, takes string) resourceapi.Device {
		counters := map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(takes)}}
		return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: card, Counters: counters}}}
	}
	slice := func(pool string, devices ...resourceapi.Device) resourceapi.ResourceSlice {
		return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Pool: resourceapi.ResourcePool{Name: pool}, Devices: devices}}
	}
	all := func(slices ...resourceapi.ResourceSlice) []resourceapi.ResourceSlice { return slices }
	cards := slice("n/gpu")
	for _, card := range []string{"card0", "card1"} {
		cards.Spec.SharedCounters = append(cards.Spec.SharedCounters, resourceapi.CounterSet{
			Name: card, Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("7")}},
		})
	}
	divided := []resourceapi.ResourceSlice{cards, slice("n/gpu",
		part("whole0", "card0", "7"), part("big0", "card0", "4"), part("small0", "card0", "1"), part("whole1", "card1", "7"))}
	for name, test := range map[string]struct {
		slices     []resourceapi.ResourceSlice
		held       []string
		used, free int32
	}{
		"nothing":           {},
		"all free":          {slices: all(slice("n/gpu", plain("a")), slice("n/gpu", plain("b"))), free: 2},
		"other pools":       {slices: all(slice("n/host", plain("a")), slice("n/gpu", plain("b"))), held: []string{"n/host/a"}, free: 1},
		"one held":          {slices: all(slice("n/gpu", plain("a"), plain("b"))), held: []string{"n/gpu/a"}, used: 1, free: 1},
		"held, not there":   {slices: all(slice("n/gpu", plain("b"))), held: []string{"n/gpu/a"}, used: 1, free: 1},
		"tainted":           {slices: all(slice("n/gpu", tainted("a", resourceapi.DeviceTaintEffectNoSchedule), plain("b"))), free: 1},
		"marked":            {slices: all(slice("n/gpu", tainted("a", resourceapi.DeviceTaintEffectNone), plain("b"))), free: 2},
		"parts":             {slices: divided, free: 4},
		"a part held":       {slices: divided, held: []string{"n/gpu/small0"}, used: 1, free: 2},
		"a big part held":   {slices: divided, held: []string{"n/gpu/big0"}, used: 1, free: 2},
		"a whole card held": {slices: divided, held: []string{"n/gpu/whole0"}, used: 1, free: 1},
	} {
		t.Run(name, func(t *testing.T) {
			held := map[string]bool{}
			for _, name := range test.held {
				held[name] = true
			}
			used, free := countUse("n/gpu", test.slices, held)
			if used != test.used || free != test.free {
				t.Errorf("%d used and %d free, want %d and %d", used, free, test.used, test.free)
			}
		})
	}
}

// TestSummary: the texts name every vendor and version, and the counts stay while the records cannot be read.
func TestSummary(t *testing.T) {
	v := nodefixture.Snapshot(t, "8xh100-sxm")
	held := map[string]bool{nodefixture.Node + "/gpu/" + v.Devices[0].Name: true}
	in := statusInput{node: nodefixture.Node, snapshot: v, slices: published(v), held: held}
	before := nodeStatus(in)
	if got := before.Summary.GPUs; got != "8 (1 used, 7 free)" {
		t.Errorf("GPUs %q", got)
	}
	if got := before.Summary.FPGAs; got != "0" {
		t.Errorf("FPGAs %q", got)
	}
	in.held, in.before = nil, &before
	if diff := cmp.Diff(before.Pools, nodeStatus(in).Pools); diff != "" {
		t.Errorf("without records (-before +after):\n%s", diff)
	}
	several := &v1alpha1.AcceleratorNodeStatus{Vendors: []v1alpha1.VendorStatus{
		{Name: "amd", DriverVersion: "6.12.12"}, {Name: "host"}, {Name: "nvidia", DriverVersion: "580.95.5"},
	}}
	if got := summarize(several, v).Drivers; got != "amd 6.12.12, host, nvidia 580.95.5" {
		t.Errorf("drivers %q", got)
	}
}

// TestDriverOfNoVersion: a driver whose text is no version still shows, so that checks of before its change do not count after it.
func TestDriverOfNoVersion(t *testing.T) {
	vendor, text := "amd", "nightly 20261101"
	v := &inventory.Snapshot{Devices: []device.Device{{Name: "gpu", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		device.AttributeVendor: {StringValue: &vendor}, device.AttributeDriverVersionText: {StringValue: &text},
	}}}}
	want := []v1alpha1.VendorStatus{{Name: "amd", Devices: 1, DriverVersion: text}}
	if diff := cmp.Diff(want, vendors(v)); diff != "" {
		t.Errorf("vendors (-want +got):\n%s", diff)
	}
}

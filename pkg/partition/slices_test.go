// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// node are GPUs of a model in every form, MIG and VFIO.
func node(t testing.TB, m model, gpus int) (cards []device.Card, devices []device.Device) {
	t.Helper()
	s := dynamic()
	s.Passthrough = true
	for i := range gpus {
		d := partition.Divide(partition.Physical{Device: m.whole(t, i), MIG: m.mig(true), IOMMU: true}, s, gateOn())
		if d.Card == nil || len(d.Reasons) > 0 {
			t.Fatalf("got %v", d.Reasons)
		}
		cards, devices = append(cards, *d.Card), append(devices, d.Devices...)
	}
	return cards, devices
}

const (
	testDriver = "fettle.dev"
	testNode   = "node-1"
	testPool   = testNode + "/gpu"
)

// resourceSlices are the objects that are published.
func resourceSlices(t testing.TB, cards []device.Card, devices []device.Device, form partition.Form) []*resourceapi.ResourceSlice {
	t.Helper()
	cut, err := partition.Slices(cards, devices, form)
	check.Must(t, err)
	var out []*resourceapi.ResourceSlice
	for i, s := range cut {
		object := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%03x-%s", i, testNode)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: testDriver, NodeName: new(testNode), SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: testPool, Generation: 1, ResourceSliceCount: int64(len(cut))},
			},
		}
		for _, d := range s.Devices {
			object.Spec.Devices = append(object.Spec.Devices, d.Resource())
		}
		out = append(out, object)
	}
	return out
}

// shape is the number of counter sets and of devices of each slice.
func shape(cut []partition.Slice) string {
	var out []string
	for _, s := range cut {
		out = append(out, fmt.Sprintf("%d+%d", len(s.SharedCounters), len(s.Devices)))
	}
	return strings.Join(out, " ")
}

func TestSlices(t *testing.T) {
	cards, devices := node(t, h100(), 10)
	for i := range 70 {
		devices = append(devices, device.Device{Kind: device.KindGPU, Name: fmt.Sprintf("intel-%02d", i)})
	}
	for form, want := range map[partition.Form]string{
		partition.FormSeparate: "8+0 2+0 0+27 0+27 0+27 0+27 0+27 0+27 0+27 0+27 0+27 0+27 0+64 0+6",
		partition.FormCombined: "1+27 1+27 1+27 1+27 1+27 1+27 1+27 1+27 1+27 1+27 0+64 0+6",
	} {
		cut, err := partition.Slices(cards, devices, form)
		check.Must(t, err)
		if got := shape(cut); got != want {
			t.Errorf("%s: got %s, want %s", form, got, want)
		}
		checkSlices(t, cut, form)
		// What shares nothing keeps its slices, and a card that changed takes no other along.
		again, err := partition.Slices(cards, devices[1:], form)
		check.Must(t, err)
		changed := 0
		for i := range cut {
			if !cmp.Equal(cut[i], again[i]) {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("%s: %d slices changed with one card", form, changed)
		}
	}
}

// checkSlices wants what the API's own documentation says of the two forms (k8s.io/api v0.34.3 and v0.35.0, ResourceSliceSpec). The second
// is checked by a real API server too.
func checkSlices(t *testing.T, cut []partition.Slice, form partition.Form) {
	t.Helper()
	sets := map[string]int{}
	names := map[string]bool{}
	for i, s := range cut {
		counters, consumed := 0, 0
		here := map[string]bool{}
		for _, set := range s.SharedCounters {
			sets[set.Name]++
			here[set.Name] = true
			counters += len(set.Counters)
			if len(set.Counters) == 0 || len(set.Counters) > 32 {
				t.Errorf("slice %d: set %s has %d counters", i, set.Name, len(set.Counters))
			}
		}
		for _, d := range s.Devices {
			names[d.Name] = true
			consumed += len(d.Consumes)
			if len(d.Consumes) > 32 {
				t.Errorf("slice %d: %s consumes %d counters", i, d.Name, len(d.Consumes))
			}
			if form == partition.FormCombined && d.Card != "" && !here[d.Card] {
				t.Errorf("slice %d: %s consumes of %s, which is not there", i, d.Name, d.Card)
			}
		}
		switch {
		case len(s.Devices) > device.MaxPerSlice:
			t.Errorf("slice %d has %d devices", i, len(s.Devices))
		case form == partition.FormCombined && (counters > 32 || consumed > 1024):
			t.Errorf("slice %d: %d counters, %d consumed", i, counters, consumed)
		case form == partition.FormSeparate && (len(s.SharedCounters) > 8 || s.SharedCounters != nil && s.Devices != nil):
			t.Errorf("slice %d: %d sets and %d devices", i, len(s.SharedCounters), len(s.Devices))
		}
	}
	for name, n := range sets {
		if n != 1 {
			t.Errorf("set %s appears %d times", name, n)
		}
	}
}

func TestSlicesOfOthers(t *testing.T) {
	empty, err := partition.Slices(nil, nil, partition.FormSeparate)
	check.Must(t, err)
	if len(empty) > 0 {
		t.Errorf("no devices: %v", empty)
	}
	cards, devices := node(t, h100(), 2)
	_, err = partition.Slices(cards[:1], devices, partition.FormSeparate)
	check.WantErr(t, err, nil, "which there is not")
	unused, err := partition.Slices(cards, devices[:27], partition.FormSeparate)
	check.Must(t, err)
	if got := shape(unused); got != "1+0 0+27" {
		t.Errorf("a card without devices: %s", got)
	}
	p := partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 64, 64)}
	many := partition.Divide(p, sriov(64), gateOn())
	cards = []device.Card{*many.Card}
	if cut, err := partition.Slices(cards, many.Devices, partition.FormSeparate); err != nil || shape(cut) != "1+0 0+64 0+1" {
		t.Errorf("65 devices of one card: %s, %v", shape(cut), err)
	}
	rest := append(slices.Clip(many.Devices), device.Device{Kind: device.KindGPU, Name: "plain"})
	if cut, err := partition.Slices(cards, rest, partition.FormCombined); err == nil || shape(cut) != "0+1" {
		t.Errorf("65 devices of one card, which 1.34 cannot have: %s, %v", shape(cut), err)
	}
}

// TestNoAttributeTwice: a part has no value under two names, but for pairs that have a reason.
func TestNoAttributeTwice(t *testing.T) {
	_, devices := node(t, h100(), 1)
	for _, d := range []partition.Division{
		partition.Divide(partition.Physical{Device: other(t, "amd"), AMD: modes("CPX", "NPS4")}, partition.Settings{}, gateOn()),
		partition.Divide(partition.Physical{Device: other(t, "intel"), Functions: vfs(t, 4, 4)}, sriov(4), gateOn()),
	} {
		devices = append(devices, d.Devices...)
	}
	types := map[string]bool{}
	for _, d := range devices {
		types[device.StringOf(d.Attributes[device.AttributeType])] = true
		if twice := nodefixture.Twice(d.Resource()); len(twice) > 0 {
			t.Error(twice)
		}
	}
	if len(types) < 4 {
		t.Errorf("looked at %v", types)
	}
}

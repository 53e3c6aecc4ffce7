// SPDX-License-Identifier: Apache-2.0

package partition_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/partition"
)

// counted are counters by name, written as quantities.
func counted(text map[string]string) map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for name, value := range text {
		out[name] = resourceapi.Counter{Value: resource.MustParse(value)}
	}
	return out
}

func TestShort(t *testing.T) {
	gpu := counted(map[string]string{
		"memory": "40Gi", "multiprocessors": "64", "copy-engines": "4", "ofa-engines": "1", "memory-slice-0": "1", "memory-slice-1": "1",
		"memory-slice-2": "1", "memory-slice-3": "1", "memory-slice-10": "1",
	})
	functions := counted(map[string]string{"virtual-functions": "7"})
	for _, tc := range []struct {
		amount map[string]string
		card   map[string]resourceapi.Counter
		want   string
	}{
		{
			map[string]string{"memory-slice-2": "1", "memory": "10Gi", "multiprocessors": "14", "copy-engines": "1"},
			gpu,
			"slice 2, 14 SMs, 10 GiB",
		},
		{map[string]string{"memory-slice-0": "1", "memory-slice-1": "1", "memory-slice-3": "1", "memory-slice-10": "1"}, gpu, "slices 0-1,3,10"},
		{map[string]string{"memory": "20445Mi"}, gpu, "20 GiB"},
		{map[string]string{"memory": "9984Mi"}, gpu, "9.8 GiB"},
		{map[string]string{"memory": "406Mi", "memory-slice-0": "0"}, gpu, "406 MiB"},
		{map[string]string{"copy-engines": "3", "ofa-engines": "1"}, gpu, "3 of 4 copy engines, 1 of 1 ofa engines"},
		{nil, gpu, "nothing"},
		{map[string]string{"copy-engines": "0"}, gpu, "nothing"},
		{map[string]string{"virtual-functions": "1"}, functions, "1 of 7 virtual functions"},
		{map[string]string{"virtual-functions": "7"}, functions, "all"},
		{map[string]string{"device": "1"}, counted(map[string]string{"device": "1"}), "all"},
		{map[string]string{"device": "1"}, nil, "nothing"},
		// Another driver's: numbered, but not one each.
		{map[string]string{"link-0": "2"}, counted(map[string]string{"link-0": "4", "spare": "1"}), "2 of 4 link 0"},
	} {
		if got := partition.Short(counted(tc.amount), tc.card); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.amount, got, tc.want)
		}
	}
}

// TestShortOfEveryProfile: what each instance takes is told apart by its place, and only what takes a whole card is "all".
func TestShortOfEveryProfile(t *testing.T) {
	for _, m := range models() {
		d := partition.Divide(partition.Physical{Device: m.whole(t, 0), MIG: m.mig(false), IOMMU: true}, withPassthrough(dynamic()), gateOn())
		for _, one := range d.Devices {
			got := partition.Short(one.Consumes, d.Card.Counters)
			if part, ok := d.Parts[one.Name]; (got == "all") != (!ok || part.Type == "vfio") || got == "nothing" {
				t.Errorf("%s, %s: %s", m.name, one.Name, got)
			}
		}
	}
}

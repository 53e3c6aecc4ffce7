// SPDX-License-Identifier: Apache-2.0

package cost_test

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/partition/cost"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fleet"
)

// TestReport counts two nodes with all profiles, of which claims have one.
func TestReport(t *testing.T) {
	f, err := fleet.New("../../..", t.TempDir())
	check.Must(t, err)
	c := cost.New("fettle.dev", []*resourceapi.ResourceClaim{fleet.Holder(0), fleet.Holder(1), {}})
	var bytes int64
	for i := range 2 {
		all, err := f.Slices(i)
		check.Must(t, err)
		for _, s := range all {
			c.Add(s)
			for k := range s.Spec.Devices {
				bytes += int64(s.Spec.Devices[k].Size())
			}
		}
	}
	c.Add(&resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: "other.example", Devices: []resourceapi.Device{{Name: "x"}}}})
	report := c.Report()
	counts, sum := map[string]int{}, int64(0)
	for _, p := range report.Profiles {
		counts[p.Name], sum = p.Devices, sum+p.Bytes
		if p.Nodes != 2 || p.Product != "NVIDIA H100 80GB HBM3" || (p.Held > 0) != (p.Name == "1g.10gb") {
			t.Errorf("%+v", p)
		}
	}
	want := map[string]int{
		"whole": 16, "1g.10gb": 112, "1g.10gb+me": 112, "1g.20gb": 64, "2g.20gb": 48, "3g.40gb": 32, "4g.40gb": 16, "7g.80gb": 16,
	}
	if diff := cmp.Diff(want, counts); diff != "" || sum != bytes {
		t.Errorf("%s; %d bytes of %d", diff, sum, bytes)
	}
	if len(report.Advice) != 1 || !cmp.Equal(report.Advice[0].Profiles, []string{"1g.10gb"}) {
		t.Fatalf("advice %+v", report.Advice)
	}
	if a := report.Advice[0]; a.Bytes <= 0 || a.Bytes > bytes*2/5 || a.Memory != 7*a.Bytes {
		t.Errorf("%d of %d bytes, %d of memory", a.Bytes, bytes, a.Memory)
	}
	if none := cost.New("fettle.dev", nil).Report(); len(none.Profiles)+len(none.Advice) > 0 {
		t.Errorf("of nothing: %+v", none)
	}
}

// TestMemory holds the memory that is told against what a program takes that has read slices.
func TestMemory(t *testing.T) {
	f, err := fleet.New("../../..", t.TempDir())
	check.Must(t, err)
	all, err := f.Slices(0)
	check.Must(t, err)
	c := cost.New("fettle.dev", nil)
	var raw [][]byte
	for _, s := range all {
		c.Add(s)
		data, err := s.Marshal()
		check.Must(t, err)
		raw = append(raw, data)
	}
	told := int64(0)
	for _, p := range c.Report().Profiles {
		told += p.Memory
	}
	const nodes = 20
	var before, after runtime.MemStats
	kept := make([]*resourceapi.ResourceSlice, 0, nodes*len(raw))
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range nodes {
		for _, data := range raw {
			s := &resourceapi.ResourceSlice{}
			check.Must(t, s.Unmarshal(data))
			kept = append(kept, s)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	taken := int64(after.HeapAlloc-before.HeapAlloc) / nodes
	if ratio := float64(told) / float64(taken); ratio < 0.8 || ratio > 1.2 {
		t.Errorf("%d bytes of memory are told and %d taken", told, taken)
	}
}

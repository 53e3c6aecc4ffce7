// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sim"
)

func TestPlan(t *testing.T) {
	p := makePlan(7, standard())
	opts := cmp.AllowUnexported(plan{}, scale{}, pod{}, want{}, fault{})
	if diff := cmp.Diff(p, makePlan(7, standard()), opts); diff != "" {
		t.Errorf("the same seed gives another plan:\n%s", diff)
	}
	if cmp.Equal(p, makePlan(8, standard()), opts) {
		t.Error("another seed gives the same plan")
	}
	got, sure := countFaults(p), 0
	rolling := false
	for i, f := range p.faults {
		if i > 0 && f.at < p.faults[i-1].at || f.at > 2*p.prepares {
			t.Errorf("fault %d is at operation %d", i, f.at)
		}
		if f.kind == faultRoll || f.kind == faultRolled {
			if rolling == (f.kind == faultRoll) {
				t.Errorf("fault %d, %s: rolling updates overlap", i, f.kind)
			}
			rolling = f.kind == faultRoll
		}
	}
	for _, q := range p.pods {
		if q.attempts < 0 {
			sure += len(q.claims) * q.rounds
		}
	}
	want := map[faultKind]int{
		faultKill: 200, faultReboot: 20, faultPause: 20, faultHang: 20, faultStop: 10, faultRestart: 10, faultRoll: 8, faultRolled: 8,
		faultWipe: 5, faultFill: 15, faultUnload: 10, faultRename: 15, faultLook: 40,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if sure < 5000 || sure > 5100 {
		t.Errorf("%d claims are prepared for certain, want 5000", sure)
	}
	for kind, n := range countFaults(makePlan(7, short())) {
		if n < 3 {
			t.Errorf("a short round has %d x %s", n, kind)
		}
	}
	small := makePlan(7, standard().times(50)).without([]string{"kill", "roll"})
	for _, f := range small.faults {
		if f.kind == faultKill || f.kind == faultRoll || f.kind == faultRolled {
			t.Errorf("%s was to be left out", f.kind)
		}
	}
}

func countFaults(p plan) map[faultKind]int {
	out := map[faultKind]int{}
	for _, f := range p.faults {
		out[f.kind]++
	}
	return out
}

// TestMachine: the text is a machine, and its devices' numbers are what the hardware says, at each boot.
func TestMachine(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for name, n := range map[string]numbering{"first": firstNumbering(), "another": otherNumbering(random)} {
		t.Run(name, func(t *testing.T) {
			m, err := sim.Parse([]byte(machineText(n, "boot")))
			if err != nil {
				t.Fatal(err)
			}
			all := n.hardware()
			if len(all) != gpuCount+dirCount {
				t.Errorf("%d devices", len(all))
			}
			for _, hw := range all {
				path := (hw.node + hw.dir)[1:]
				i := slices.IndexFunc(m.Entries, func(e sim.Entry) bool { return e.Path == path })
				if i < 0 {
					t.Fatalf("%s is not in the machine", path)
				}
				if got := m.Entries[i].Number; int64(got.Major) != hw.major || int64(got.Minor) != hw.minor {
					t.Errorf("%s is %v, want %d:%d", path, got, hw.major, hw.minor)
				}
				if hw.node == "" {
					continue
				}
				info := filepath.Join("proc/driver/nvidia/gpus", hw.key, "information")
				if !slices.ContainsFunc(m.Entries, func(e sim.Entry) bool { return e.Path == info }) {
					t.Errorf("%s is not in the machine", info)
				}
			}
		})
	}
}

func TestScheduler(t *testing.T) {
	id := func(name string) deviceID { return deviceID{"n/gpu", name} }
	s := newScheduler([]deviceID{id("a"), id("b"), id("c")}, nil)
	random := rand.New(rand.NewPCG(1, 1))
	two, err := s.take(t.Context(), random, []want{{gpus: 1}, {gpus: 1}, {gpus: 3, look: true}})
	if err != nil || len(two) != 3 || two[0][0] == two[1][0] || len(two[2]) != 3 {
		t.Fatalf("took %v, %v", two, err)
	}
	if got, _ := s.try(random, []want{{gpus: 1}, {gpus: 1}}); got != nil {
		t.Errorf("took %v of one that is free", got)
	}
	taken := make(chan [][]deviceID)
	go func() {
		got, _ := s.take(t.Context(), random, []want{{gpus: 2}})
		taken <- got
	}()
	s.give(two[0], false)
	if got := <-taken; len(got[0]) != 2 {
		t.Errorf("took %v after one was given back", got)
	}
	s.give([]deviceID{id("a"), id("c")}, false)
	s.give([]deviceID{id("b")}, true)
	if s.reserve(id("b")) || !s.reserve(id("a")) || s.reserve(id("a")) {
		t.Error("reserve gives what is not free, or what kubelet still has")
	}
	if got, _ := s.try(random, []want{{gpus: 1}}); got[0][0] != id("b") {
		t.Errorf("took %v, want the one whose last claim is not unprepared", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func at(since time.Duration) Moment { return Moment{BootID: "boot-1", Since: since} }

// TestArrivals: only what arrived before the claim was given back is too late. A named claim comes back with the next pod.
func TestArrivals(t *testing.T) {
	tests := map[string]struct {
		buried  []Moment
		arrived Moment
		stale   bool
	}{
		"never given back":         {arrived: at(5)},
		"before":                   {buried: []Moment{at(5)}, arrived: at(4), stale: true},
		"at once":                  {buried: []Moment{at(5)}, arrived: at(5)},
		"after":                    {buried: []Moment{at(5)}, arrived: at(6)},
		"in the boot before":       {buried: []Moment{at(5)}, arrived: Moment{BootID: "boot-0", Since: 4}},
		"in the boot after":        {buried: []Moment{at(5)}, arrived: Moment{BootID: "boot-2", Since: 4}},
		"twice, between":           {buried: []Moment{at(5), at(9)}, arrived: at(7), stale: true},
		"twice, after":             {buried: []Moment{at(5), at(9)}, arrived: at(9)},
		"overtaken, between":       {buried: []Moment{at(9), at(5)}, arrived: at(7), stale: true},
		"an earlier boot's first":  {buried: []Moment{{BootID: "boot-0", Since: 99}, at(5)}, arrived: at(4), stale: true},
		"an earlier boot's, after": {buried: []Moment{{BootID: "boot-0", Since: 99}, at(5)}, arrived: at(6)},
		"long uptime":              {buried: []Moment{at(1 << 62)}, arrived: at(1<<62 - 1), stale: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for _, m := range tt.buried {
				must(t, s.Bury("u1", m))
			}
			must(t, s.CheckArrival("u2", tt.arrived))
			err := s.CheckArrival("u1", tt.arrived)
			if !tt.stale {
				must(t, err)
				return
			}
			stale, ok := errors.AsType[*StaleError](err)
			if !ok || stale.UID != "u1" || !strings.Contains(err.Error(), "kubelet asks again") {
				t.Errorf("error %v, want a StaleError that says what happens next", err)
			}
		})
	}
}

// TestCorruptTombstones: what nobody wrote is about nobody's call, and does not stay.
func TestCorruptTombstones(t *testing.T) {
	for _, target := range []string{"boot-1", "boot-1@", "@5", "boot-1@x", "boot-1@5@", "boot-1@99999999999999999999", "../claims/u1.json"} {
		s := open(t)
		put(t, s, holding("u1", "gpu-0"))
		must(t, os.Symlink(target, s.tombstonePath("u1")))
		must(t, s.CheckArrival("u1", at(0)))
		must(t, s.Bury("u1", at(5)))
		if err := s.CheckArrival("u1", at(4)); err == nil {
			t.Errorf("%q: kept although the claim was given back", target)
		}
		must(t, os.Remove(s.tombstonePath("u1")))
		must(t, os.Symlink(target, s.tombstonePath("u1")))
		must(t, s.Exhume(at(0)))
		if diff := cmp.Diff([]string{"claims/u1.json", "owners/node-1_gpu_gpu-0/u1"}, files(t, s)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", target, diff)
		}
	}
}

// TestExhume removes what no call can be older than, and leaves what somebody may be about to look at.
func TestExhume(t *testing.T) {
	s := open(t)
	for uid, m := range map[string]Moment{
		"older": at(4), "equal": at(5), "younger": at(6), "locked": at(3), "other-boot": {BootID: "boot-0", Since: 9},
	} {
		must(t, s.Bury(uid, m))
	}
	must(t, os.WriteFile(s.tombstonePath("file"), nil, 0o600))
	hold, err := s.LockClaim(t.Context(), "locked")
	must(t, err)
	must(t, s.Exhume(at(5)))
	want := []string{"tombstones/equal", "tombstones/locked", "tombstones/younger"}
	if diff := cmp.Diff(want, files(t, s)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	hold.Release()
	must(t, s.Exhume(at(7)))
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
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
				bury(t, s, "u1", m)
			}
			check.Must(t, arrival(t, s, "u2", tt.arrived))
			err := arrival(t, &Store{locks: s.locks, fs: s.fs, dir: s.dir}, "u1", tt.arrived)
			if !tt.stale {
				check.Must(t, err)
				return
			}
			stale, ok := errors.AsType[*StaleError](err)
			if !ok || stale.UID != "u1" || !strings.Contains(err.Error(), "kubelet asks again") {
				t.Errorf("error %v, want a StaleError that says what happens next", err)
			}
		})
	}
}

// sharers are claims whose tombstones are in one slot.
func sharers(t *testing.T, count int) []string {
	t.Helper()
	uids := []string{"u1"}
	for i := 0; len(uids) < count; i++ {
		if uid := fmt.Sprintf("other-%d", i); slotOf(uid) == slotOf("u1") {
			uids = append(uids, uid)
		}
	}
	return uids
}

// TestNeighbours: claims that are given back at once, in one slot, lose no moment, and none refuses another's call.
func TestNeighbours(t *testing.T) {
	uids := sharers(t, slotClaims)
	for range 20 {
		s := open(t)
		var wg sync.WaitGroup
		for i, uid := range uids {
			wg.Go(func() { bury(t, s, uid, at(time.Duration(10*i+10))) })
		}
		wg.Wait()
		for i, uid := range uids {
			check.Must(t, arrival(t, s, uid, at(time.Duration(10*i+10))))
			if err := arrival(t, s, uid, at(time.Duration(10*i+9))); err == nil {
				t.Errorf("claim %s: its moment was lost", uid)
			}
		}
	}
}

// TestFullSlot: what had to leave still refuses what is too late, and of others' calls only those that arrived before it.
func TestFullSlot(t *testing.T) {
	uids := sharers(t, slotClaims+4)
	s := open(t)
	given, fresh := uids[:len(uids)-1], uids[len(uids)-1]
	moment := func(i int) time.Duration { return time.Duration(10*i + 10) }
	for i, uid := range given {
		bury(t, s, uid, at(moment(i)))
	}
	left := len(given) - slotClaims
	for i, uid := range given {
		check.Must(t, arrival(t, s, uid, at(max(moment(i), moment(left-1)))))
		if err := arrival(t, s, uid, at(moment(i)-1)); err == nil {
			t.Errorf("claim %d: its moment was lost", i)
		}
	}
	check.Must(t, arrival(t, s, fresh, at(moment(left-1))))
	if err := arrival(t, s, fresh, at(moment(left-1)-1)); err == nil {
		t.Error("a claim that may have left: its call is not tried again")
	}
	bury(t, s, given[0], at(1)) // overtaken by its own later one, which left
	if err := arrival(t, s, given[0], at(moment(0)-1)); err == nil {
		t.Error("a claim that left and came back: its moment was lost")
	}
}

// TestTombstonesAreApart: none is another's, nor a byte that is locked for something else.
func TestTombstonesAreApart(t *testing.T) {
	seen := map[int64]bool{}
	for i := range 1000 {
		slot := slotOf(fmt.Sprintf("u%d", i))
		seen[slot] = true
		if slot%slotSize != 0 || slot < slotsOffset || slot > slotsOffset+(slots-1)*slotSize {
			t.Fatalf("u%d is at %d", i, slot)
		}
	}
	if len(seen) < 950 {
		t.Errorf("1000 claims are in %d places", len(seen))
	}
}

// TestTombstonesHaveSpace: it is taken at the start, so that a disk that fills up later keeps nobody from burying.
func TestTombstonesHaveSpace(t *testing.T) {
	s := open(t)
	info, err := os.Stat(filepath.Join(s.dir, lockFile))
	check.Must(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	if want := int64(slots * slotSize); !ok || info.Size() < slotsOffset+want || stat.Blocks*512 < want {
		t.Errorf("the lock file has %d bytes and %d blocks, want room for %d at %d", info.Size(), stat.Blocks, want, slotsOffset)
	}
}

// TestCorruptTombstones: what nobody wrote is about nobody's call, and does not stay.
func TestCorruptTombstones(t *testing.T) {
	s := open(t)
	lock := filepath.Join(s.dir, lockFile)
	for _, content := range []string{"", "x", strings.Repeat("\xff", slotsOffset+slots*slotSize), strings.Repeat("{}", 1<<21)} {
		check.Must(t, os.WriteFile(lock, []byte(content), 0o600))
		check.Must(t, arrival(t, s, "u1", at(0)))
		bury(t, s, "u1", at(5))
		check.Must(t, arrival(t, s, "u1", at(5)))
		if err := arrival(t, s, "u1", at(4)); err == nil {
			t.Errorf("%.9q: kept although the claim was given back", content)
		}
	}
}

// TestUnreadableTombstone: what cannot be read is not taken for what is not there.
func TestUnreadableTombstone(t *testing.T) {
	s := open(t)
	h, err := s.LockClaim(t.Context(), "u1")
	check.Must(t, err)
	h.Release()
	if err := h.CheckArrival(t.Context(), at(5)); err == nil || !strings.Contains(err.Error(), "u1") {
		t.Errorf("error %v, want one that names the claim", err)
	}
	if err := h.LeaveTombstone(t.Context(), at(5)); err == nil || !strings.Contains(err.Error(), "u1") {
		t.Errorf("error %v, want one that names the claim", err)
	}
}

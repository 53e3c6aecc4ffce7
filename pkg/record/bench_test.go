// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// durable is a store that syncs.
func durable(b *testing.B) *Store {
	b.Helper()
	s, err := Open(disk.OS{}, filepath.Join(b.TempDir(), "state"))
	check.Must(b, err)
	return s
}

func BenchmarkCreate(b *testing.B) {
	s, r := durable(b), full()
	for i := 0; b.Loop(); i++ {
		r.UID = fmt.Sprintf("u%d", i)
		check.Must(b, s.Create(r))
	}
}

// BenchmarkAdvance is a step that is done, and the whole claim, which is synced.
func BenchmarkAdvance(b *testing.B) {
	for name, c := range map[string]Change{"step": {State: step.Done}, "prepared": {Phase: Prepared}} {
		b.Run(name, func(b *testing.B) {
			s, steps := durable(b), 1
			if c.Phase != "" {
				steps = 0
			}
			for b.Loop() {
				b.StopTimer()
				r := stepping("u1", steps)
				check.Must(b, s.Create(r))
				b.StartTimer()
				check.Must(b, s.Advance(r, c))
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	s, r := durable(b), full()
	check.Must(b, s.Create(r))
	advance(b, s, r, Change{Step: 0, State: step.Done}, Change{Step: 1, State: step.Done}, Change{Phase: Prepared})
	for b.Loop() {
		load(b, s, fullUID)
	}
}

// BenchmarkLockAcquire is what a claim with one device pays for being alone with it.
func BenchmarkLockAcquire(b *testing.B) {
	s, r := durable(b), holding("u1", "gpu-0")
	put(b, s, r)
	for b.Loop() {
		hold, err := s.LockClaim(b.Context(), r.UID)
		check.Must(b, err)
		check.Must(b, hold.Devices(b.Context(), []string{pool + "/gpu-0"}))
		check.Must(b, s.Acquire(r))
		hold.Release()
	}
}

// BenchmarkTombstone is what a Prepare pays to learn that it was not overtaken, and an Unprepare to leave word.
func BenchmarkTombstone(b *testing.B) {
	s := durable(b)
	hold, err := s.LockClaim(b.Context(), "u1")
	check.Must(b, err)
	defer hold.Release()
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			check.Must(b, hold.CheckArrival(b.Context(), Moment{BootID: "boot-1", Since: 1 << 62}))
		}
	})
	b.Run("bury", func(b *testing.B) {
		for i := 1; b.Loop(); i++ {
			check.Must(b, hold.LeaveTombstone(b.Context(), Moment{BootID: "boot-1", Since: time.Duration(i)}))
		}
	})
}

// BenchmarkAcquireShare takes a share of a device of which so many claims have one.
func BenchmarkAcquireShare(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b)
			for i := range n {
				put(b, s, sharing("a", fmt.Sprintf("held-%d", i), "gpu-0"))
			}
			r := sharing("a", "next", "gpu-0")
			check.Must(b, s.Create(r))
			for b.Loop() {
				check.Must(b, s.Acquire(r))
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// During a rolling update two processes serve one node, and kubelet may call either.

// neighbour is a second process that starts beside the first.
func (s *site) neighbour() *site {
	s.t.Helper()
	next := s.newEngine()
	check.Must(s.t, next.Index(s.t.Context()))
	return next
}

// TestNeighboursServe: what one prepared, the other answers alike and gives back.
func TestNeighboursServe(t *testing.T) {
	older := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	first := older.prepare(c)
	data := older.write("ssd0")
	newer := older.neighbour()
	newer.tidy()
	if diff := cmp.Diff(first, newer.prepare(c), sameRecord()); diff != "" {
		t.Errorf("the newer answers (-older +newer):\n%s", diff)
	}
	newer.prepare(allocated("u2", aGPU("gpu1")))
	if _, err := older.ask(allocated("u3", aGPU("gpu1"))); !isInUse(err) {
		t.Errorf("the older: error %v, want that the newer's claim holds it", err)
	}
	if !there(data) {
		t.Error("the newer took the claim's data")
	}
	newer.unprepare("u1")
	older.unprepare("u2")
	older.prepare(allocated("u4", aGPU("gpu0"), aGPU("gpu1"), aDisk("ssd0")))
	older.Stop()
	newer.unprepare("u4")
	newer.records()
	newer.heldBy("", aGPU("gpu0"), aGPU("gpu1"), aDisk("ssd0"))
	newer.reported()
}

// TestNeighboursPrepareTogether: the same claim, asked of both at once, is prepared once and answered alike.
func TestNeighboursPrepareTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, older *site) {
		newer := older.neighbour()
		d, d2 := older.diary(), newer.diary()
		g, g2 := older.guard("ssd0"), newer.guard("ssd0")
		c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
		one, other := older.asking(c), newer.asking(c)
		synctest.Wait()
		if len(g.at)+len(g2.at) != 1 {
			t.Errorf("%d and %d apply the step, want one of them", len(g.at), len(g2.at))
		}
		g.open()
		g2.open()
		a, b := receive(t, one), receive(t, other)
		check.Must(t, a.err)
		check.Must(t, b.err)
		older.isWhole(a.record)
		if diff := cmp.Diff(a.record, b.record, sameRecord()); diff != "" {
			t.Errorf("answers (-older +newer):\n%s", diff)
		}
		if lines := append(d.take(), d2.take()...); !cmp.Equal(lines, []string{"apply ssd0"}) {
			t.Errorf("steps %v, want one", lines)
		}
		older.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	})
}

// TestNeighbourIsBusy: what the one works on, the other leaves alone and says so: a call, its start, its rounds, its collection.
func TestNeighbourIsBusy(t *testing.T) {
	inBubble(t, func(t *testing.T, older *site) {
		g := older.guard("ssd0")
		c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
		asked := older.asking(c)
		older.at(g, "apply")

		newer := older.neighbour()
		d := newer.diary()
		if got := newer.Recovering(); len(got) > 0 {
			t.Errorf("recovers %v, which the other prepares", got)
		}
		if _, err := newer.ask(c); !errors.Is(err, record.ErrBusy) {
			t.Errorf("prepare: error %v, want ErrBusy", err)
		}
		if _, err := newer.Unprepare(t.Context(), "u1", newer.now()); !errors.Is(err, record.ErrBusy) {
			t.Errorf("unprepare: error %v, want ErrBusy", err)
		}
		newer.drop(c)
		newer.kubeletHolds()
		for range missesToCollect + 1 {
			newer.tidy()
			newer.collect(t.Context())
		}
		if lines := d.take(); len(lines) > 0 {
			t.Errorf("the other did %v", lines)
		}
		if got := newer.Recovering(); len(got) > 0 {
			t.Errorf("recovers %v, which the other prepares", got)
		}
		newer.inPhase("u1", record.Intended)
		newer.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))

		newer.put(c)
		g.open()
		got := receive(t, asked)
		check.Must(t, got.err)
		older.isWhole(got.record)
		newer.reasons() // the collection said that it was too late, or busy
		newer.prepare(c)
	})
}

// TestNeighbourIsUndoing: the same while the one gives a claim back.
func TestNeighbourIsUndoing(t *testing.T) {
	inBubble(t, func(t *testing.T, older *site) {
		c := allocated("u1", aDisk("ssd0"))
		older.prepare(c)
		g := older.guard("ssd0")
		back := older.unpreparing("u1")
		older.at(g, "undo")
		newer := older.neighbour()
		d := newer.diary()
		if _, err := newer.ask(c); !errors.Is(err, record.ErrBusy) {
			t.Errorf("prepare: error %v, want ErrBusy", err)
		}
		newer.tidy()
		if lines := d.take(); len(lines) > 0 {
			t.Errorf("the other did %v", lines)
		}
		g.open()
		check.Must(t, receive(t, back).err)
		newer.prepare(c)
	})
}

// TestNeighbourTakesOver: what a process left halfway when it ended is undone by the one that is still there, at its next round.
func TestNeighbourTakesOver(t *testing.T) {
	inBubble(t, func(t *testing.T, older *site) {
		g := older.guard("ssd0")
		asked := older.asking(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
		older.at(g, "apply")
		newer := older.neighbour()
		older.Stop()
		receive(t, asked)
		newer.tidy()
		newer.records()
		newer.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
		newer.reported("RolledBack u1")
	})
}

// TestNeighbourRecovered: devices that one process found halfway, and the other put in order, are free for both.
func TestNeighbourRecovered(t *testing.T) {
	inBubble(t, func(t *testing.T, dead *site) {
		g := dead.guard("ssd0")
		asked := dead.asking(allocated("u1", aDisk("ssd0")))
		dead.at(g, "apply")
		dead.Stop()
		receive(t, asked)
		older, newer := dead.neighbour(), dead.neighbour()
		older.unprepare("u1")
		newer.tidy()
		if got := newer.Recovering(); len(got) > 0 {
			t.Errorf("still recovering %v, of a claim that is gone", got)
		}
	})
}

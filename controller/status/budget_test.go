// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestBudget: however many nodes there are, the API server sends them as much in a minute, and a few nodes get all at once.
func TestBudget(t *testing.T) {
	for _, nodes := range []int{2, 100, 1000, 5000} {
		clock := clocktesting.NewFakePassiveClock(time.Now())
		b := NewBudget(clock)
		writes, begin := 0, clock.Now()
		for clock.Since(begin) < time.Minute {
			if wait := b.Take(nodes); wait > 0 {
				clock.SetTime(clock.Now().Add(wait))
				continue
			}
			if writes++; writes > 10*deliveries {
				break
			}
			clock.SetTime(clock.Now().Add(time.Millisecond))
		}
		if sent, most := writes*nodes, (60+10)*deliveries+nodes; sent > most {
			t.Errorf("%d nodes: %d writes, %d deliveries in a minute, want at most %d", nodes, writes, sent, most)
		}
		if least := 60*deliveries/nodes - 1; writes < min(least, 10*deliveries) {
			t.Errorf("%d nodes: only %d writes in a minute", nodes, writes)
		}
	}
	var none *Budget
	for range 1000 {
		if wait := max(none.Take(5000), none.TakeCounts("a", 5000)); wait > 0 {
			t.Fatalf("no budget asks to wait %s", wait)
		}
	}
}

// TestCountsOfARollout: counts that change all the time are written at once first and ever more rarely then, of each object by itself, and
// after a rest at once again. Nothing is kept of objects that rest.
func TestCountsOfARollout(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	b := NewBudget(clock)
	rollout := func(length time.Duration) (writes int) {
		for begin := clock.Now(); clock.Since(begin) < length; clock.SetTime(clock.Now().Add(time.Second)) {
			if b.TakeCounts("a", 100) == 0 {
				writes++
			}
		}
		return writes
	}
	for _, tt := range []struct {
		length      time.Duration
		least, most int
	}{{time.Second, 1, 1}, {30 * time.Second, 3, 4}, {2 * time.Minute, 5, 6}, {30 * time.Minute, 15, 20}} {
		if n := rollout(tt.length); n < tt.least || n > tt.most {
			t.Errorf("in %s: %d writes, want %d to %d", tt.length, n, tt.least, tt.most)
		}
		if wait := b.TakeCounts("b", 100); wait > 0 {
			t.Errorf("after %s: another object waits %s", tt.length, wait)
		}
		clock.SetTime(clock.Now().Add(3 * longest))
	}
	for _, other := range []types.UID{"c", "d"} {
		b.TakeCounts(other, 1)
	}
	if len(b.counted) != 2 {
		t.Errorf("it keeps %d objects", len(b.counted))
	}
}

// TestTurnsBeforeCounts: however many objects have counts that go on changing, which a tenant can see to, the next wave of a rollout
// of another waits for one of these writes at most, also if they are always faster.
func TestTurnsBeforeCounts(t *testing.T) {
	for _, nodes := range []int{100, 5000, 20000} {
		clock := clocktesting.NewFakePassiveClock(time.Now())
		b := NewBudget(clock)
		var since time.Time
		var longest time.Duration
		for begin := clock.Now(); clock.Since(begin) < 5*time.Minute; clock.SetTime(clock.Now().Add(time.Second)) {
			for i := range 2000 {
				b.TakeCounts(types.UID(fmt.Sprint(i)), nodes)
			}
			switch {
			case clock.Since(begin)%time.Minute == 0:
				since = clock.Now()
				fallthrough
			case !since.IsZero():
				if longest = max(longest, clock.Since(since)); b.Take(nodes) == 0 {
					since = time.Time{}
				}
			}
		}
		if most := time.Duration(nodes)*time.Second/deliveries + time.Second; longest > most {
			t.Errorf("%d nodes: a wave waits %s, want at most %s", nodes, longest, most)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"
	"time"

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
		if wait := none.Take(5000); wait > 0 {
			t.Fatalf("no budget asks to wait %s", wait)
		}
	}
}

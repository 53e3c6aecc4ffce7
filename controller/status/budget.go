// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// deliveries is how many copies of objects the API server sends in a second, to all nodes together, only because counts have changed.
	// Every node watches the objects that have them.
	deliveries = 1000
	// ahead is for how many seconds' deliveries may be sent at once after nothing was sent for as long.
	ahead = 10 * time.Second
	// aheadCounts is how much of that counts may take. The rest is for other writes, so that counts of many objects, which tenants make,
	// hold up no rollout.
	aheadCounts = ahead / 2

	// shortest is the least time between two writes of one object's counts. While they go on changing it doubles up to longest.
	shortest = 5 * time.Second
	longest  = 2 * time.Minute
)

// Budget bounds the writes of what nodes report, such as counts, into objects that all nodes watch: what such a write costs grows with the
// nodes, so the more there are, the rarer they are. With a hundred nodes there may be ten a second, with 5,000 one in five. A nil Budget
// has no bound. It is safe for concurrent use.
type Budget struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// paid is until when the deliveries of all writes so far take.
	paid time.Time
	// counted has the last writes of counts, by object. It forgets those that are long ago.
	counted map[types.UID]pace
}

// pace is when an object's counts were written last, and how long the next write of them waits after that.
type pace struct {
	at    time.Time
	pause time.Duration
}

// after returns the pace after another write.
func (p pace) after(now time.Time) pace {
	if now.Sub(p.at) >= 2*p.pause { // the counts had come to rest
		return pace{now, shortest}
	}
	return pace{now, min(2*p.pause, longest)}
}

// NewBudget returns a budget of which nothing is used.
func NewBudget(c clock.PassiveClock) *Budget { return &Budget{clock: c, counted: map[types.UID]pace{}} }

// Take takes a write that is sent to so many nodes. If it is too early, it takes none and returns how long to wait.
func (b *Budget) Take(nodes int) (wait time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take(nodes, ahead)
}

// TakeCounts is Take for a write that says nothing but how many nodes there are of a kind, or which. A rollout changes that each second for
// minutes: the first such writes of an object come soon, and later ones ever more rarely.
func (b *Budget) TakeCounts(object types.UID, nodes int) (wait time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now, last := b.clock.Now(), b.counted[object]
	if wait = last.at.Add(last.pause).Sub(now); wait > 0 {
		return wait
	}
	if wait = b.take(nodes, aheadCounts); wait > 0 {
		return wait
	}
	maps.DeleteFunc(b.counted, func(_ types.UID, p pace) bool { return now.Sub(p.at) >= 2*longest })
	b.counted[object] = last.after(now)
	return 0
}

// take is Take for a caller that holds the lock, and that may be so far ahead.
func (b *Budget) take(nodes int, ahead time.Duration) (wait time.Duration) {
	now := b.clock.Now()
	paid := b.paid
	if paid.Before(now) {
		paid = now
	}
	if wait = paid.Sub(now) - ahead; wait > 0 {
		return wait
	}
	b.paid = paid.Add(time.Duration(nodes) * time.Second / deliveries)
	return 0
}

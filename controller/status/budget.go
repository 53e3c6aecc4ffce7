// SPDX-License-Identifier: Apache-2.0

package status

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// deliveries is how many copies of objects the API server sends in a second, to all nodes together, only because counts have changed.
	// Every node watches the objects that have them.
	deliveries = 1000
	// ahead is for how many seconds' deliveries may be sent at once after nothing was sent for as long.
	ahead = 10 * time.Second
)

// Budget bounds the writes of what nodes report, such as counts, into objects that all nodes watch: what such a write costs grows with the
// nodes, so the more there are, the rarer they are. With a hundred nodes there may be ten a second, with 5,000 one in five. A nil Budget
// has no bound. It is safe for concurrent use.
type Budget struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// paid is until when the deliveries of all writes so far take.
	paid time.Time
}

// NewBudget returns a budget of which nothing is used.
func NewBudget(c clock.PassiveClock) *Budget { return &Budget{clock: c} }

// Take takes a write that is sent to so many nodes. If it is too early, it takes none and returns how long to wait.
func (b *Budget) Take(nodes int) (wait time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
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

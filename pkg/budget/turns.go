// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"slices"
	"sync"
)

// Turns limits how many callers do at once what takes memory or processor time of the plugin: in all, and for each namespace. Callers wait
// in the order in which they came, except that a namespace with all its turns taken lets others pass, and after each of its turns, too.
type Turns struct {
	limit Limit

	mu      sync.Mutex
	taken   map[string]int
	all     int
	waiting []*waiter
}

// waiter is a caller that waits. ready is closed when it has its turn.
type waiter struct {
	namespace string
	ready     chan struct{}
}

// NewTurns returns turns for so many callers in all, and for each namespace. The empty namespace, that of the cluster's own objects, may
// take all turns.
func NewTurns(limit Limit) *Turns {
	return &Turns{limit: limit, taken: map[string]int{}}
}

// Take waits for a turn of a namespace, or until ctx ends. The caller calls done after its turn, once.
func (t *Turns) Take(ctx context.Context, namespace string) (done func(), err error) {
	w := &waiter{namespace: namespace, ready: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.admit()
	t.mu.Unlock()
	select {
	case <-w.ready:
		return func() { t.give(namespace) }, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // it got its turn meanwhile
		t.give(namespace)
	}
	return nil, context.Cause(ctx)
}

func (t *Turns) give(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.taken[namespace]--; t.taken[namespace] == 0 {
		delete(t.taken, namespace)
	}
	served := func(w *waiter) bool { return w.namespace == namespace }
	last := slices.DeleteFunc(slices.Clone(t.waiting), func(w *waiter) bool { return !served(w) })
	t.waiting = append(slices.DeleteFunc(t.waiting, served), last...)
	t.admit()
}

// try takes a turn of a namespace if one is free, else it returns nil.
func (t *Turns) try(namespace string) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.take(namespace) {
		return nil
	}
	return func() { t.give(namespace) }
}

// othersWait reports whether another namespace waits for a turn and has one left of its own.
func (t *Turns) othersWait(namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.namespace != namespace && t.mayHave(w.namespace) })
}

// mayHave reports whether a namespace has a turn left of its own. The caller holds the lock.
func (t *Turns) mayHave(namespace string) bool {
	return namespace == "" || t.limit.Namespace <= 0 || int64(t.taken[namespace]) < t.limit.Namespace
}

// admit gives free turns to waiting callers. The caller holds the lock.
func (t *Turns) admit() {
	t.waiting = slices.DeleteFunc(t.waiting, func(w *waiter) bool {
		if !t.take(w.namespace) {
			return false
		}
		close(w.ready)
		return true
	})
}

// take counts a turn of a namespace if one is free. The caller holds the lock.
func (t *Turns) take(namespace string) bool {
	if t.limit.Node > 0 && int64(t.all) >= t.limit.Node || !t.mayHave(namespace) {
		return false
	}
	t.all++
	t.taken[namespace]++
	return true
}

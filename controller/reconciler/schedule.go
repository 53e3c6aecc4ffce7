// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Schedule remembers when each object is due again, so that an event of something else does not repeat work that has its own time. It is
// kept in memory only: a new leader does everything once. The zero value is empty and may be used at once.
type Schedule struct {
	mu      sync.Mutex
	entries map[types.NamespacedName]scheduled
}

// scheduled is an object as it was when the work was done.
type scheduled struct {
	uid        types.UID
	generation int64
	// due is zero if only a change of the object makes it due.
	due time.Time
}

// Done notes that the work for an object was done and is due again after a while; 0 is not before the object changes.
func (s *Schedule) Done(key types.NamespacedName, o client.Object, after time.Duration, now time.Time) {
	entry := scheduled{uid: o.GetUID(), generation: o.GetGeneration()}
	if after > 0 {
		entry.due = now.Add(after)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[types.NamespacedName]scheduled{}
	}
	s.entries[key] = entry
}

// Remaining says whether the work for an object as it is now was done and is not due yet, and for how long; 0 is until the object changes.
func (s *Schedule) Remaining(key types.NamespacedName, o client.Object, now time.Time) (wait time.Duration, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, ok := s.entries[key]
	if !ok || entry.uid != o.GetUID() || entry.generation != o.GetGeneration() {
		return 0, false
	}
	if entry.due.IsZero() {
		return 0, true
	}
	wait = entry.due.Sub(now)
	return wait, wait > 0
}

// Forget makes an object due.
func (s *Schedule) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, key)
}

// Len returns how many objects are remembered.
func (s *Schedule) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

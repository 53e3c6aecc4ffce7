// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"slices"
	"sync"
)

// Listeners are functions that are called after something changed. The zero value has none. It is safe for concurrent use.
type Listeners struct {
	mu  sync.Mutex
	all []func()
}

// Add registers a function, which must not block.
func (l *Listeners) Add(listener func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, listener)
}

// Call calls all functions, in the order in which they were registered.
func (l *Listeners) Call() {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	for _, listener := range all {
		listener()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package notify wakes a goroutine without waiting for it.
package notify

// Signal carries at most one value: one that waits says as much as many. Make it with New.
type Signal chan struct{}

// New makes a signal.
func New() Signal { return make(Signal, 1) }

// Send leaves a value for the receiver. It never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

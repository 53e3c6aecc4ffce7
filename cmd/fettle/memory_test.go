// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestMemoryFor: what a program keeps is two thirds of the bound at most, so that collecting garbage does not take all of its time.
func TestMemoryFor(t *testing.T) {
	for live, want := range map[uint64]int64{0: 400 << 20, 250 << 20: 400 << 20, 300 << 20: 800 << 20, 1200 << 20: 3200 << 20} {
		if got := memoryFor(live); got != want {
			t.Errorf("%d MiB are kept: bound %d MiB, want %d", live>>20, got>>20, want>>20)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"testing"
	"time"
)

// TestPauses: they grow to the longest, differ, and begin anew.
func TestPauses(t *testing.T) {
	p := New(30 * time.Second)
	for range 2 {
		least := time.Second
		seen := map[time.Duration]bool{}
		for range 100 {
			got := p.Next()
			if got < least || got > least*3/2 {
				t.Errorf("%s, want from %s to half more", got, least)
			}
			seen[got] = true
			least = min(2*least, 30*time.Second)
		}
		if len(seen) < 90 {
			t.Errorf("%d different pauses of 100", len(seen))
		}
		p.Reset()
	}
}

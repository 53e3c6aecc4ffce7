// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// Clock is a clock for what writes to a machine. The pauses between two tries take no time, so that all tries are made at once. The limit
// of a write passes by Step only: how long a real write takes is up to how busy the computer is.
type Clock struct{ *clocktesting.FakeClock }

// NewClock returns a Clock.
func NewClock() Clock { return Clock{clocktesting.NewFakeClock(time.Unix(0, 0))} }

// After is a pause.
func (c Clock) After(d time.Duration) <-chan time.Time {
	passed := c.FakeClock.After(d)
	c.Step(d)
	return passed
}

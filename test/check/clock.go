// SPDX-License-Identifier: Apache-2.0

package check

import (
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// Hurried returns a clock on which waiting takes no time: what is waited for has passed at once. So what looks again and again looks as
// often as its limit allows, however busy the computer is.
func Hurried() clock.Clock { return hurried{clocktesting.NewFakeClock(time.Unix(0, 0))} }

type hurried struct{ *clocktesting.FakeClock }

func (h hurried) NewTimer(d time.Duration) clock.Timer {
	timer := h.FakeClock.NewTimer(d)
	h.Step(d)
	return timer
}

func (h hurried) After(d time.Duration) <-chan time.Time { return h.NewTimer(d).C() }

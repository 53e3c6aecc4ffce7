// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
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

// GivesUp has act wait in vain for the driver's answer, such as to "write /sys/bus/pci/drivers/nvidia/unbind", lets its limit pass once,
// and returns its error. What the machine does answer may also be waited for just then, so act is called until it gave up there, and at the
// first limit.
func (c Clock) GivesUp(t testing.TB, limit time.Duration, at string, act func() error) error {
	t.Helper()
	var err error
	check.Eventually(t, fmt.Sprintf("what waits for an answer to %s gives up after %s", at, limit), func() bool {
		ended := make(chan error, 1)
		go func() { ended <- act() }()
		limits := check.Wind(t, "it ends", c, limit, func() bool { return len(ended) == 1 })
		err = <-ended
		if !errors.Is(err, sysfs.ErrNoAnswer) {
			t.Fatalf("the driver does not answer: error %v, want %v", err, sysfs.ErrNoAnswer)
		}
		return limits == 1 && strings.Contains(err.Error(), at)
	})
	return err
}

// GivesUpOnce is GivesUp for an act that cannot be repeated: once the driver was asked, another finds another machine, such as one with a
// lock. No time passes before the driver was asked.
func (c Clock) GivesUpOnce(t testing.TB, limit time.Duration, asked func() bool, act func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- act() }()
	check.Eventually(t, "the driver is asked", asked)
	if limits := check.Wind(t, "it ends", c, limit, func() bool { return len(ended) == 1 }); limits != 1 {
		t.Errorf("it waits for %d times %s", limits, limit)
	}
	return <-ended
}

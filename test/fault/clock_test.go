// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/fault"
)

func TestClock(t *testing.T) {
	start := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := fault.NewClock(start)
	boot, up := c.BootID(), c.SinceBoot()
	c.Advance(time.Minute)
	if c.Now() != start.Add(time.Minute) || c.SinceBoot() != up+time.Minute || c.BootID() != boot {
		t.Errorf("a minute later: %v, %v, %s", c.Now(), c.SinceBoot(), c.BootID())
	}
	c.Jump(start)
	if c.Now() != start || c.SinceBoot() != up+time.Minute {
		t.Errorf("after a jump: %v, %v", c.Now(), c.SinceBoot())
	}
	c.Reboot(time.Hour)
	if c.Now() != start.Add(time.Hour) || c.SinceBoot() != 0 || c.BootID() == boot {
		t.Errorf("after a reboot: %v, %v, %s", c.Now(), c.SinceBoot(), c.BootID())
	}
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"sync"
	"time"
)

// Clock is a machine's time, set by hand. It is safe for concurrent use.
type Clock struct {
	mu   sync.Mutex
	now  time.Time
	up   time.Duration
	boot int
}

// NewClock is a machine that was started an hour before.
func NewClock(now time.Time) *Clock { return &Clock{now: now, up: time.Hour, boot: 1} }

// Now is the wall clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// SinceBoot is CLOCK_BOOTTIME.
func (c *Clock) SinceBoot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// BootID is as /proc/sys/kernel/random/boot_id.
func (c *Clock) BootID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", c.boot)
}

// Advance lets time pass.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.up = c.now.Add(d), c.up+d
}

// Jump sets the wall clock only, as an administrator or NTP does.
func (c *Clock) Jump(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// Reboot takes some time and gives the machine another boot id.
func (c *Clock) Reboot(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.up, c.boot = c.now.Add(took), 0, c.boot+1
}

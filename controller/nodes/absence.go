// SPDX-License-Identifier: Apache-2.0

package nodes

import "time"

const (
	// pruneGrace is how long a Node must be missing before its AcceleratorNode is deleted. A Node that is deleted and registers again (a
	// reboot in some clouds) must not lose the object that its plugin is about to write.
	pruneGrace = time.Minute
	// pruneChecks is how often the API server must have been asked for the Node in vain.
	pruneChecks = 2
)

// absence says since when and how often a Node was missing. The zero value is a Node that was never missing.
type absence struct {
	since  time.Time
	checks int
}

// observe counts one check that found the Node missing.
func (a absence) observe(now time.Time) absence {
	if a.checks == 0 {
		a.since = now
	}
	a.checks++
	return a
}

// wait returns the time until the next check; 0 is that the Node was missing often and long enough.
func (a absence) wait(now time.Time) time.Duration {
	left := pruneGrace - now.Sub(a.since)
	if left <= 0 && a.checks >= pruneChecks {
		return 0
	}
	return max(left, time.Second)
}

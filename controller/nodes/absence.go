// SPDX-License-Identifier: Apache-2.0

package nodes

import "time"

const (
	// pruneGrace is how long a Node must have been missing before its status object goes. A Node that is deleted and
	// registers again (a reboot in some clouds) must not lose the object its plugin is about to write.
	pruneGrace = time.Minute
	// pruneChecks is how many looks at the API server must have found the Node missing.
	pruneChecks = 2
)

// absence is what the pruner remembers of a Node that it could not find. The zero value has seen nothing yet.
type absence struct {
	since  time.Time
	checks int
}

// observe counts one look at now that found the Node missing.
func (a absence) observe(now time.Time) absence {
	if a.checks == 0 {
		a.since = now
	}
	a.checks++
	return a
}

// wait says how long to wait for the next look; zero means that the Node has been missing often and long enough.
func (a absence) wait(now time.Time) time.Duration {
	left := pruneGrace - now.Sub(a.since)
	if left <= 0 && a.checks >= pruneChecks {
		return 0
	}
	return max(left, time.Second)
}

// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Check is one promise of the protocol.
type Check struct {
	// Name is GROUP/NAME.
	Name string
	// Summary is one line that says what a conforming plugin does.
	Summary string

	needs needs
	run   func(context.Context, *scene) error
}

// Group is the part of the name before the slash.
func (c Check) Group() string {
	group, _, _ := strings.Cut(c.Name, "/")
	return group
}

// needs are what a check cannot do without. Where something lacks, the check is skipped and says so.
type needs struct {
	// devices is the number of free devices. exclusive leaves out those that allow several allocations, shared all others.
	devices                            int
	exclusive, shared                  bool
	registration, cdi, restart, reboot bool
}

// lacks returns the reason to skip, or "".
func (n needs) lacks(c *Config) string {
	switch {
	case n.registration && c.Registration == "":
		return "no registration socket is given"
	case n.cdi && len(c.CDIDirs) == 0:
		return "no CDI directory is given"
	case n.restart && c.Restart == nil:
		return "no command that restarts the plugin is given"
	case n.reboot && c.Reboot == nil:
		return "no command that does what a reboot does is given"
	}
	return ""
}

// Checks are all checks in the order in which they run.
func Checks() []Check {
	return slices.Concat(registrationChecks(), slicesChecks(), prepareChecks(), useChecks(), sharedChecks(), unprepareChecks(), cdiChecks(),
		concurrencyChecks(), healthChecks(), restartChecks(), cleanupChecks())
}

// skipError is a reason why a check says nothing about the plugin.
type skipError struct{ reason string }

func (e skipError) Error() string { return e.reason }

func skip(format string, args ...any) error {
	return skipError{fmt.Sprintf(format, args...)}
}

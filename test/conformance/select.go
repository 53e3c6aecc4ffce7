// SPDX-License-Identifier: Apache-2.0

package conformance

import "regexp"

// Select keeps the checks whose names match focus and do not match skip. A nil expression says nothing.
func Select(checks []Check, focus, skip *regexp.Regexp) []Check {
	var out []Check
	for _, c := range checks {
		if focus != nil && !focus.MatchString(c.Name) || skip != nil && skip.MatchString(c.Name) {
			continue
		}
		out = append(out, c)
	}
	return out
}

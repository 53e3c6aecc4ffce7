// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"regexp"
	"slices"
	"strings"
)

// reasons are the classes of what the scheduler says. The text of a class is nowhere in the text of another.
var reasons = []struct {
	class string
	text  *regexp.Regexp
}{
	{"claim-missing", regexp.MustCompile(`ResourceClaim not created yet|could not find ResourceClaim`)},
	{"class-missing", regexp.MustCompile(`device class \S+ does not exist`)},
	{"claim-in-use", regexp.MustCompile(`resourceclaim in use|status\.reservedFor: Too many`)},
	{"claim-deleted", regexp.MustCompile(`resourceclaim \S+ is being deleted`)},
	{"gated", regexp.MustCompile(`non-empty scheduling gates`)},
	{"claim-twice", regexp.MustCompile(`status\.reservedFor\[\d+\]: Duplicate value`)},
	{"claim-undated", regexp.MustCompile(`status\.allocation: Invalid value: \S+ field cannot be modified once set`)},
	{"claim-in-flight", regexp.MustCompile(`is in the process of being allocated`)},
	{"claim-elsewhere", regexp.MustCompile(`resourceclaim not available on the node`)},
	{"no-devices", regexp.MustCompile(`cannot allocate all claims`)},
	{"timeout", regexp.MustCompile(`timed out trying to allocate devices`)},
	{"cel-compile", regexp.MustCompile(`CEL compile error`)},
	{"cel-runtime", regexp.MustCompile(`CEL runtime error`)},
	{"invalid-pool", regexp.MustCompile(`invalid resource pools were encountered|resource pool \S+ is currently invalid`)},
	{"incomplete-pool", regexp.MustCompile(`resource pool \S+ is currently being updated`)},
	{"all-constraint", regexp.MustCompile(`because a claim constraint would not be satisfied`)},
	{"too-many", regexp.MustCompile(`exceeds the claim limit of 32`)},
	{"feature-off", regexp.MustCompile(`but the (feature|DRA\w+ feature) is disabled`)},
	{"no-resource", regexp.MustCompile(`cannot fit resource|Insufficient \S+/\S+`)},
}

// classOf returns the classes of what was said, joined by a plus. If nothing was said about devices, that is "node".
func classOf(text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	var out []string
	for _, r := range reasons {
		if r.text.MatchString(text) {
			out = append(out, r.class)
		}
	}
	if len(out) == 0 {
		return "node"
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "+")
}

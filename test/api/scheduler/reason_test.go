// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"regexp"
	"slices"
	"strings"
)

// reasons are the classes of what the scheduler says, and how an explanation begins to say what that means. The text of a class is nowhere
// in the text of another.
var reasons = []struct {
	class   string
	text    *regexp.Regexp
	meaning string
}{
	{"claim-missing", regexp.MustCompile(`ResourceClaim not created yet`), "the claim of the pod's template is not made"},
	{"claim-missing", regexp.MustCompile(`could not find ResourceClaim`), "a ResourceClaim that the pod names does not exist"},
	{"class-missing", regexp.MustCompile(`device class \S+ does not exist`), "the pod waits until the DeviceClass is created"},
	{"claim-in-use", regexp.MustCompile(`resourceclaim in use|status\.reservedFor: Too many`), "256 pods use the claim"},
	{"claim-deleted", regexp.MustCompile(`resourceclaim \S+ is being deleted`), "a claim that the pod names is being deleted"},
	{"gated", regexp.MustCompile(`non-empty scheduling gates`), "until its spec.schedulingGates are removed"},
	{"claim-twice", regexp.MustCompile(`status\.reservedFor\[\d+\]: Duplicate value`), "the pod names one ResourceClaim twice"},
	{
		"claim-undated", regexp.MustCompile(`status\.allocation: Invalid value: \S+ field cannot be modified once set`),
		"allocated by hand without allocationTimestamp",
	},
	{"claim-in-flight", regexp.MustCompile(`is in the process of being allocated`), "another pod that uses the claim is being scheduled"},
	{"claim-elsewhere", regexp.MustCompile(`resourceclaim not available on the node`), "a claim of the pod has devices of another node"},
	{"no-devices", regexp.MustCompile(`cannot allocate all claims`), "so many nodes do not have the devices"},
	{"timeout", regexp.MustCompile(`timed out trying to allocate devices`), "the scheduler searched for 10 seconds on one node"},
	{"cel-compile", regexp.MustCompile(`CEL compile error`), "a selector is no valid CEL"},
	{"cel-runtime", regexp.MustCompile(`CEL runtime error`), "a selector fails on a device"},
	{"invalid-pool", regexp.MustCompile(`invalid resource pools were encountered`), "the slices of a driver contradict each other"},
	{"invalid-pool", regexp.MustCompile(`resource pool \S+ is currently invalid`), "allocationMode All needs valid pools"},
	{"incomplete-pool", regexp.MustCompile(`resource pool \S+ is currently being updated`), "allocationMode All waits until the driver"},
	{"all-constraint", regexp.MustCompile(`because a claim constraint would not be satisfied`), "allocationMode All takes every device"},
	{"too-many", regexp.MustCompile(`exceeds the claim limit of 32`), "a claim can have 32 devices"},
	{"feature-off", regexp.MustCompile(`but the (feature|DRA\w+ feature) is disabled`), "does not have a feature gate on"},
	{"no-resource", regexp.MustCompile(`cannot fit resource`), "the devices for an extended resource of the pod are not there"},
	{"no-resource", regexp.MustCompile(`Insufficient \S+/\S+`), "have too little CPU, memory or another resource left"},
}

// meaningsOf returns the beginnings of what words of the scheduler mean.
func meaningsOf(words string) []string {
	var out []string
	for _, r := range reasons {
		if r.text.MatchString(words) {
			out = append(out, r.meaning)
		}
	}
	return out
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

// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
)

// The reasons of the condition Healthy, and of problems that the ledger has no fault for.
const (
	reasonAllHealthy        = "AllHealthy"
	reasonDevicesUnhealthy  = "DevicesUnhealthy"
	reasonHealthUnknown     = "HealthUnknown"
	reasonLedgerUnavailable = "HealthLedgerUnavailable"
)

// maxNamed is how many devices a condition names; the problems have the rest.
const maxNamed = 8

// healthProblems are what the AcceleratorNode lists of the devices' health.
func healthProblems(node string, v *view) []discover.Problem {
	var problems []discover.Problem
	for _, name := range slices.Sorted(maps.Keys(v.health.statuses)) {
		s := v.health.statuses[name]
		problems = append(problems, discover.Problem{
			Subject: v.subject(name), Reason: s.Reason,
			Message: fmt.Sprintf("device %s is %s since %s: %s",
				name, strings.ToLower(string(s.State)), s.Since.Format(time.RFC3339), s.Message),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(v.health.silent)) {
		if _, bad := v.health.statuses[name]; !bad {
			problems = append(problems, discover.Problem{Subject: v.subject(name), Reason: reasonHealthUnknown, Message: v.health.silent[name]})
		}
	}
	if v.health.trouble != "" {
		problems = append(problems, discover.Problem{Subject: node, Reason: reasonLedgerUnavailable, Message: v.health.trouble})
	}
	return problems
}

// subject is the PCI address of a device, or its name.
func (v *view) subject(name string) string {
	for i := range v.devices {
		if v.devices[i].Name == name {
			return cmp.Or(stringOf(v.devices[i].Attributes[device.AttributePCIAddress]), name)
		}
	}
	return name
}

// healthCondition sums the node up.
func healthCondition(v *view) (value metav1.ConditionStatus, reason, message string) {
	switch bad, silent := v.health.statuses, v.health.silent; {
	case len(bad) > 0:
		return metav1.ConditionFalse, reasonDevicesUnhealthy, "not healthy: " + enumerate(bad)
	case len(silent) > 0:
		return metav1.ConditionUnknown, reasonHealthUnknown, "nothing is known of the health of " + enumerate(silent)
	default:
		return metav1.ConditionTrue, reasonAllHealthy, "nothing is known against any device"
	}
}

// enumerate names the first few.
func enumerate[V any](devices map[string]V) string {
	names := slices.Sorted(maps.Keys(devices))
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

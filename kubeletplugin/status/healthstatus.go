// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
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
func healthProblems(node string, v *inventory.Snapshot) []discover.Problem {
	var problems []discover.Problem
	for _, name := range slices.Sorted(maps.Keys(v.Health.Statuses)) {
		s := v.Health.Statuses[name]
		problems = append(problems, discover.Problem{
			Subject: subject(v, name), Reason: s.Reason,
			Message: fmt.Sprintf("device %s is %s since %s: %s",
				name, strings.ToLower(string(s.State)), s.Since.Format(time.RFC3339), s.Message),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(v.Health.Silent)) {
		if _, bad := v.Health.Statuses[name]; !bad {
			problems = append(problems, discover.Problem{Subject: subject(v, name), Reason: reasonHealthUnknown, Message: v.Health.Silent[name]})
		}
	}
	if v.Health.Trouble != "" {
		problems = append(problems, discover.Problem{Subject: node, Reason: reasonLedgerUnavailable, Message: v.Health.Trouble})
	}
	return problems
}

// subject is the PCI address of a device, or its name.
func subject(v *inventory.Snapshot, name string) string {
	for i := range v.Devices {
		if v.Devices[i].Name == name {
			return cmp.Or(device.StringOf(v.Devices[i].Attributes[device.AttributePCIAddress]), name)
		}
	}
	return name
}

// healthCondition sums the node up.
func healthCondition(v *inventory.Snapshot) (value metav1.ConditionStatus, reason, message string) {
	switch bad, silent := v.Health.Statuses, v.Health.Silent; {
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

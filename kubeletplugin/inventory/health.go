// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/health"
)

// TaintUnhealthy is the key of the taint on a device that is not healthy. Its value is the reason.
const TaintUnhealthy = "fettle.dev/unhealthy"

// Taint is the taint of a device that is not healthy. What a device can still do decides over its pods: they leave one that failed.
// Quarantine keeps other claims away; the claim that had the device when its step failed is told why it waits.
func Taint(s health.Status, noEviction bool) resourceapi.DeviceTaint {
	taint := resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: s.Reason, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if s.State == health.Unhealthy && !noEviction {
		taint.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return taint
}

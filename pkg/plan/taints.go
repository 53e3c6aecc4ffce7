// SPDX-License-Identifier: Apache-2.0

package plan

import (
	resourceapi "k8s.io/api/resource/v1"
)

// taintSlices adds the taints of rules to the devices that they select, in the order of the rules. The slices are changed.
func taintSlices(slices []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) {
	for _, rule := range rules {
		for _, slice := range slices {
			for i := range slice.Spec.Devices {
				if device := &slice.Spec.Devices[i]; ruleSelects(rule.Spec.DeviceSelector, slice, device.Name) {
					device.Taints = append(device.Taints, rule.Spec.Taint)
				}
			}
		}
	}
}

// ruleSelects says whether a rule is for a device. A rule without a selector is for none, one with an empty selector for all.
func ruleSelects(selector *resourceapi.DeviceTaintSelector, slice *resourceapi.ResourceSlice, device string) bool {
	return selector != nil &&
		(selector.Driver == nil || *selector.Driver == slice.Spec.Driver) &&
		(selector.Pool == nil || *selector.Pool == slice.Spec.Pool.Name) &&
		(selector.Device == nil || *selector.Device == device)
}

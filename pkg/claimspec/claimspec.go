// SPDX-License-Identifier: Apache-2.0

// Package claimspec says what the API server refuses of a claim, for programs that read claims from files: one that is not there yet was
// judged by nobody.
package claimspec

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Faults returns what the API server refuses of the requests of a claim or of a template, in its words (pkg/apis/resource/validation of
// Kubernetes 1.37). What it sets by default may be missing. Not looked at are CEL, capacities, derived attributes, and what names requests.
func Faults(devices *resourceapi.DeviceClaim, path *field.Path) field.ErrorList {
	at := path.Child("requests")
	if most := resourceapi.DeviceRequestsMaxSize; len(devices.Requests) > most {
		return field.ErrorList{field.TooMany(at, len(devices.Requests), most)}
	}
	var faults field.ErrorList
	seen := map[string]bool{}
	for i := range devices.Requests {
		r := &devices.Requests[i]
		faults = append(faults, requestFaults(r, at.Index(i))...)
		if seen[r.Name] {
			faults = append(faults, field.Duplicate(at.Index(i), r.Name))
		}
		seen[r.Name] = true
	}
	return faults
}

func requestFaults(r *resourceapi.DeviceRequest, at *field.Path) field.ErrorList {
	faults := nameFaults(r.Name, at.Child("name"), validation.IsDNS1123Label)
	switch exactly, alternatives := r.Exactly != nil, len(r.FirstAvailable) > 0; {
	case exactly && alternatives:
		return append(faults, field.Invalid(at, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case exactly:
		e := r.Exactly
		faults = append(faults, askFaults(ask{e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations}, at.Child("exactly"))...)
		return faults
	case !alternatives:
		return append(faults, field.Required(at, "exactly one of `exactly` or `firstAvailable` is required"))
	}
	at = at.Child("firstAvailable")
	if most := resourceapi.FirstAvailableDeviceRequestMaxSize; len(r.FirstAvailable) > most {
		return append(faults, field.TooMany(at, len(r.FirstAvailable), most))
	}
	seen := map[string]bool{}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		faults = append(faults, nameFaults(s.Name, at.Index(i).Child("name"), validation.IsDNS1123Label)...)
		faults = append(faults, askFaults(ask{s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations}, at.Index(i))...)
		if seen[s.Name] {
			faults = append(faults, field.Duplicate(at.Index(i), s.Name))
		}
		seen[s.Name] = true
	}
	return faults
}

// ask is what a request and an alternative of one have both.
type ask struct {
	class       string
	selectors   []resourceapi.DeviceSelector
	mode        resourceapi.DeviceAllocationMode
	count       int64
	tolerations []resourceapi.DeviceToleration
}

func askFaults(a ask, at *field.Path) field.ErrorList {
	faults := nameFaults(a.class, at.Child("deviceClassName"), validation.IsDNS1123Subdomain)
	most := resourceapi.DeviceSelectorsMaxSize
	if len(a.selectors) > most {
		faults = append(faults, field.TooMany(at.Child("selectors"), len(a.selectors), most))
	}
	for i := range a.selectors {
		if len(a.selectors) <= most && a.selectors[i].CEL == nil {
			faults = append(faults, field.Required(at.Child("selectors").Index(i).Child("cel"), ""))
		}
	}
	switch a.mode {
	case "", resourceapi.DeviceAllocationModeExactCount: // the default, and a count of 1
		if a.count < 0 {
			faults = append(faults, field.Invalid(at.Child("count"), a.count, "must be greater than zero"))
		}
	case resourceapi.DeviceAllocationModeAll:
		if a.count != 0 {
			why := fmt.Sprintf("must not be specified when allocationMode is '%s'", a.mode)
			faults = append(faults, field.Invalid(at.Child("count"), a.count, why))
		}
	default:
		modes := []resourceapi.DeviceAllocationMode{resourceapi.DeviceAllocationModeAll, resourceapi.DeviceAllocationModeExactCount}
		faults = append(faults, field.NotSupported(at.Child("allocationMode"), a.mode, modes))
	}
	for i := range a.tolerations {
		faults = append(faults, tolerationFaults(&a.tolerations[i], at.Child("tolerations").Index(i))...)
	}
	return faults
}

func tolerationFaults(t *resourceapi.DeviceToleration, at *field.Path) field.ErrorList {
	var faults field.ErrorList
	if t.Key != "" {
		faults = append(faults, nameFaults(t.Key, at.Child("key"), validation.IsQualifiedName)...)
	}
	switch t.Operator {
	case resourceapi.DeviceTolerationOpExists:
		if t.Value != "" {
			faults = append(faults, field.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`"))
		}
	case "", resourceapi.DeviceTolerationOpEqual: // the default
		for _, why := range validation.IsValidLabelValue(t.Value) {
			faults = append(faults, field.Invalid(at.Child("value"), t.Value, why))
		}
	default:
		operators := []resourceapi.DeviceTolerationOperator{resourceapi.DeviceTolerationOpEqual, resourceapi.DeviceTolerationOpExists}
		faults = append(faults, field.NotSupported(at.Child("operator"), t.Operator, operators))
	}
	switch t.Effect {
	case "", resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
	default:
		effects := []resourceapi.DeviceTaintEffect{
			resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone,
		}
		faults = append(faults, field.NotSupported(at.Child("effect"), t.Effect, effects))
	}
	return faults
}

// nameFaults judges a name, which has to be there.
func nameFaults(name string, at *field.Path, judge func(string) []string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if why := judge(name); len(why) > 0 {
		return field.ErrorList{field.Invalid(at, name, strings.Join(why, "; "))}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a policy may say of sharing, as the CRD has it.
const (
	minSharingClaims = 2
	maxSharingClaims = 256
	maxMemoryText    = 16
	maxMemoryValues  = 10
)

//nolint:gochecknoglobals // a constant that Go cannot express as such
var memoryAmount = regexp.MustCompile(`^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}(Ki|Mi|Gi)|[1-9][0-9]{0,5}Ti)$`)

func (s *DeviceSharing) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	switch {
	case s.MaxClaims == 0 && s.Strategies == nil:
		faults = append(faults, field.Required(path.Child("maxClaims"), "set maxClaims, strategies or both"))
	case s.MaxClaims == 0 && s.Memory != nil:
		faults = append(faults, field.Required(path.Child("maxClaims"), "memory is counted where several claims have a device: set maxClaims"))
	case s.MaxClaims == 0:
	case s.MaxClaims < minSharingClaims || s.MaxClaims > maxSharingClaims:
		faults = append(faults, field.Invalid(path.Child("maxClaims"), s.MaxClaims,
			fmt.Sprintf("must be %d to %d", minSharingClaims, maxSharingClaims)))
	}
	faults = append(faults, s.validateStrategies(path.Child("strategies"))...)
	faults = append(faults, s.validateInterval(path.Child("interval"))...)
	if s.Memory != nil {
		faults = append(faults, s.Memory.validate(path.Child("memory"))...)
	}
	return faults
}

func (s *DeviceSharing) validateStrategies(path *field.Path) field.ErrorList {
	if s.Strategies == nil {
		return nil
	}
	if len(s.Strategies) == 0 {
		return field.ErrorList{emptyList(path)}
	}
	var faults field.ErrorList
	for i, strategy := range s.Strategies {
		faults = append(faults, oneOf(strategy, path.Index(i), SharingTimeSlicing, SharingMPS)...)
		if slices.Contains(s.Strategies[:i], strategy) {
			faults = append(faults, field.Duplicate(path.Index(i), strategy))
		}
	}
	return faults
}

func (s *DeviceSharing) validateInterval(path *field.Path) field.ErrorList {
	if s.Interval == "" {
		return nil
	}
	faults := oneOf(s.Interval, path, IntervalDefault, IntervalShort, IntervalMedium, IntervalLong)
	if s.MaxClaims == 0 || !slices.Contains(s.Strategies, SharingTimeSlicing) {
		faults = append(faults, field.Forbidden(path, "interval is for shares with time slices: set maxClaims, and TimeSlicing in strategies"))
	}
	return faults
}

// validate judges how amounts fit together once each of them is one.
func (m *SharedMemory) validate(path *field.Path) field.ErrorList {
	byDefault, faults := memoryOf(m.Default, path.Child("default"))
	if m.Range != nil && m.Values != nil {
		faults = append(faults, field.Forbidden(path.Child("values"), "set range or values"))
	}
	if m.Values != nil {
		faults = append(faults, m.validateValues(byDefault, path)...)
	}
	if m.Range != nil {
		faults = append(faults, m.validateRange(byDefault, path)...)
	}
	return faults
}

func (m *SharedMemory) validateValues(byDefault int64, path *field.Path) field.ErrorList {
	at := path.Child("values")
	if len(m.Values) == 0 {
		return field.ErrorList{emptyList(at)}
	}
	faults := atMost(len(m.Values), maxMemoryValues, at)
	var amounts []int64
	for i, text := range m.Values {
		amount, wrong := memoryOf(text, at.Index(i))
		faults = append(faults, wrong...)
		if last := len(amounts) - 1; last >= 0 && amount <= amounts[last] && len(wrong) == 0 {
			faults = append(faults, field.Invalid(at.Index(i), text, "must be more than the one before: write the values in rising order"))
		}
		amounts = append(amounts, amount)
	}
	if len(faults) == 0 && byDefault > 0 && !slices.Contains(amounts, byDefault) {
		faults = append(faults, field.Invalid(path.Child("default"), m.Default, "default must be one of values"))
	}
	return faults
}

// validateRange judges the range, and whether the default is in it.
func (m *SharedMemory) validateRange(byDefault int64, path *field.Path) field.ErrorList {
	r, at := m.Range, path.Child("range")
	least, faults := memoryOf(r.Min, at.Child("min"))
	most, step := int64(0), int64(0)
	if r.Max != "" {
		amount, wrong := memoryOf(r.Max, at.Child("max"))
		most, faults = amount, append(faults, wrong...)
	}
	if r.Step != "" {
		amount, wrong := memoryOf(r.Step, at.Child("step"))
		step, faults = amount, append(faults, wrong...)
	}
	if len(faults) > 0 || byDefault == 0 {
		return faults
	}
	const aligned = "must be range.min and a multiple of range.step"
	if most > 0 && least > most {
		faults = append(faults, field.Invalid(at.Child("min"), r.Min, "min must be at most max"))
	}
	if most > 0 && step > 0 && (most-least)%step != 0 {
		faults = append(faults, field.Invalid(at.Child("max"), r.Max, aligned))
	}
	switch at := path.Child("default"); {
	case byDefault < least:
		faults = append(faults, field.Invalid(at, m.Default, "default must be at least range.min"))
	case most > 0 && byDefault > most:
		faults = append(faults, field.Invalid(at, m.Default, "default must be at most range.max"))
	case step > 0 && (byDefault-least)%step != 0:
		faults = append(faults, field.Invalid(at, m.Default, aligned))
	}
	return faults
}

// memoryOf reads an amount, and returns 0 for a text that is none.
func memoryOf(text string, path *field.Path) (int64, field.ErrorList) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil || len(text) > maxMemoryText || !memoryAmount.MatchString(text) {
		return 0, field.ErrorList{field.Invalid(path, text, "must be a number of bytes such as 10Gi")}
	}
	return quantity.Value(), nil
}

// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Validate checks the device against the limits of resource.k8s.io/v1 that the API server would otherwise refuse a whole slice
// for, and its edits against what a container runtime can do. The error joins everything that is wrong.
func (d Device) Validate() error {
	faults := []error{d.validateName()}
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		faults = append(faults, fmt.Errorf("%d attributes and capacities, want at most %d", n,
			resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		faults = append(faults, prefixed("attribute", name, validateQualifiedName(name)),
			prefixed("attribute", name, validateAttribute(d.Attributes[name])))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		faults = append(faults, prefixed("capacity", name, validateQualifiedName(name)))
		if value := d.Capacity[name].Value; value.Sign() < 0 {
			faults = append(faults, fmt.Errorf("capacity %s: %s is negative", name, value.String()))
		}
	}
	faults = append(faults, d.Edits.Validate()...)
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("device %q: %w", d.Name, err)
	}
	return nil
}

func (d Device) validateName() error {
	if msgs := validation.IsDNS1123Label(d.Name); len(msgs) > 0 {
		return fmt.Errorf("name: %s", strings.Join(msgs, "; "))
	}
	if !slices.Contains(Kinds(), d.Kind) {
		return fmt.Errorf("kind %q: want one of %q", d.Kind, Kinds())
	}
	return nil
}

// validateQualifiedName accepts IDENTIFIER and DOMAIN/IDENTIFIER.
func validateQualifiedName(name resourceapi.QualifiedName) error {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = "", string(name)
	}
	var msgs []string
	if qualified {
		msgs = validation.IsDNS1123Subdomain(domain)
	}
	msgs = append(msgs, validation.IsCIdentifier(id)...)
	if len(domain) > resourceapi.DeviceMaxDomainLength || len(id) > resourceapi.DeviceMaxIDLength {
		msgs = append(msgs, fmt.Sprintf("want a domain of at most %d and a name of at most %d characters",
			resourceapi.DeviceMaxDomainLength, resourceapi.DeviceMaxIDLength))
	}
	if len(msgs) > 0 {
		return errors.New(strings.Join(msgs, "; "))
	}
	return nil
}

// validateAttribute wants exactly one scalar value. Lists are alpha and Fettle publishes none.
func validateAttribute(a resourceapi.DeviceAttribute) error {
	set := 0
	var err error
	if a.StringValue != nil {
		set++
		err = checkString(*a.StringValue)
	}
	if a.VersionValue != nil {
		set++
		if normal, verr := NormalizeVersion(*a.VersionValue); verr != nil || normal != *a.VersionValue {
			err = fmt.Errorf("version %q: want a semantic version of three numbers", *a.VersionValue)
		}
	}
	if a.IntValue != nil {
		set++
	}
	if a.BoolValue != nil {
		set++
	}
	if set != 1 {
		return fmt.Errorf("%d scalar values, want exactly one", set)
	}
	return err
}

func prefixed(what string, name resourceapi.QualifiedName, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}

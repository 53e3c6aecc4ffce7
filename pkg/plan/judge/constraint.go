// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// constraint is a constraint of a claim in one form.
type constraint struct {
	attribute string
	distinct  bool
	requests  []string
}

// attributes evaluates the attributes that constraints compare.
type attributes struct {
	features
	// cache is the allocator's, of Expressions.
	cache *dracel.Cache
}

// constraintsOf returns the constraints that the scheduler understands.
func (f features) constraintsOf(claim *resourceapi.ResourceClaim) []constraint {
	var out []constraint
	for _, c := range claim.Spec.Devices.Constraints {
		switch {
		case c.MatchAttribute != nil:
			out = append(out, constraint{attribute: string(*c.MatchAttribute), requests: c.Requests})
		case c.DistinctAttribute != nil && f.variant != stable:
			out = append(out, constraint{attribute: string(*c.DistinctAttribute), distinct: true, requests: c.Requests})
		}
	}
	return out
}

// checkConstraints finds constraints that the scheduler does not understand.
func (f features) checkConstraints(claim *resourceapi.ResourceClaim) []Check {
	var checks []Check
	for i, c := range claim.Spec.Devices.Constraints {
		switch {
		case c.MatchAttribute != nil:
		case c.DistinctAttribute == nil:
			checks = append(checks, Check{Kind: KindConstraint, Fatal: true, Message: fmt.Sprintf(
				"constraints[%d] has neither matchAttribute nor distinctAttribute", i)})
		case f.variant == stable:
			checks = append(checks, Check{Kind: KindGate, Fatal: true, Message: fmt.Sprintf(
				"constraints[%d] has distinctAttribute, and the feature gate DRAConsumableCapacity is off", i)})
		}
	}
	return checks
}

// checkAttributes finds constraints that no choice of other devices can satisfy with this one, since it has no such attribute. For a
// request of all devices that ends the scheduler's attempt.
func (a *attributes) checkAttributes(ctx context.Context, r *request, p *pool, d *resourceapi.Device) []Check {
	var checks []Check
	for _, c := range a.constraintsOf(r.claim) {
		if !r.named(c.requests) {
			continue
		}
		values, err := a.valuesOf(ctx, r, p, d, c.attribute)
		switch {
		case err != nil:
			checks = append(checks, Check{Kind: KindConstraint, Fatal: true, Attribute: c.attribute, Message: err.Error()})
		case len(values) == 0:
			checks = append(checks, Check{Kind: KindConstraint, Fatal: r.all(), Attribute: c.attribute, Message: fmt.Sprintf(
				"the device has no attribute %s, which a constraint of the claim compares", c.attribute)})
		}
	}
	return checks
}

// valuesOf returns the values that constraints compare. Two values are equal if their texts are.
func (a *attributes) valuesOf(
	ctx context.Context, r *request, p *pool, d *resourceapi.Device, name string,
) ([]string, error) {
	if a.DerivedAttributes {
		for _, derived := range r.DerivedAttributes {
			if string(derived.Name) == name {
				return a.derive(ctx, derived.Expression, p, d)
			}
		}
	}
	attribute, found := d.Attributes[resourceapi.QualifiedName(name)]
	if !found {
		domain, own, qualified := strings.Cut(name, "/")
		if !qualified || domain != p.driver {
			return nil, nil
		}
		if attribute, found = d.Attributes[resourceapi.QualifiedName(own)]; !found {
			return nil, nil
		}
	}
	return a.values(attribute, p, d), nil
}

// derive evaluates an expression that a request gives for an attribute.
func (a *attributes) derive(ctx context.Context, expression string, p *pool, d *resourceapi.Device) ([]string, error) {
	x := a.cache.GetOrCompileDerivedAttribute(expression)
	if x.Error != nil {
		return nil, fmt.Errorf("CEL compile error: %w", x.Error)
	}
	attribute, _, err := x.EvaluateDerivedAttribute(ctx, dracel.Device{
		Driver: p.driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil || attribute == nil {
		return nil, err
	}
	return a.values(*attribute, p, d), nil
}

// values writes the values of an attribute. One of an unknown type is equal to nothing, but a device with it can be alone.
func (f features) values(a resourceapi.DeviceAttribute, p *pool, d *resourceapi.Device) []string {
	switch {
	case a.StringValue != nil:
		return []string{strconv.Quote(*a.StringValue)}
	case a.IntValue != nil:
		return []string{strconv.FormatInt(*a.IntValue, 10)}
	case a.BoolValue != nil:
		return []string{strconv.FormatBool(*a.BoolValue)}
	case a.VersionValue != nil:
		return []string{"version " + *a.VersionValue}
	case !f.ListTypeAttributes:
		return []string{"a list of " + p.name + "/" + d.Name}
	}
	var out []string
	for _, v := range a.StringValues {
		out = append(out, strconv.Quote(v))
	}
	for _, v := range a.IntValues {
		out = append(out, strconv.FormatInt(v, 10))
	}
	for _, v := range a.BoolValues {
		out = append(out, strconv.FormatBool(v))
	}
	for _, v := range a.VersionValues {
		out = append(out, "version "+v)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

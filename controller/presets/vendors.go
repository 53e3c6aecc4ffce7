// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// maker is one type of devices of one vendor.
type maker struct{ vendor, deviceType string }

// makers returns the makers that the driver knows.
func makers() []maker {
	var out []maker
	for _, v := range vendors.All() {
		for _, deviceType := range v.Types {
			out = append(out, maker{v.Name, deviceType})
		}
	}
	return out
}

// device returns a device of which only the maker is known.
func (m maker) device() *preset.Device {
	return &preset.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		device.AttributeVendor: {StringValue: &m.vendor},
		"type":                 {StringValue: &m.deviceType},
	}}
}

// answer is the result of a condition for a device of which only the maker is known.
type answer int

const (
	never  answer = iota // false, whatever the other attributes are
	maybe                // it depends on other attributes
	always               // true, whatever the other attributes are
)

// ask evaluates a condition. Other attributes than the maker's are an error of CEL, unless the result does not depend on them.
func ask(ctx context.Context, c *preset.Conditions, expression string, m maker) answer {
	ok, err := c.Holds(ctx, expression, v1alpha1.DriverName, m.device())
	switch {
	case err != nil:
		return maybe
	case ok:
		return always
	}
	return never
}

// kinds is a set of makers, by their index in the table.
type kinds uint64

// selected returns the makers for whose devices a condition may hold, and those for which it must. If it holds for no maker of the table
// it may be about another one, so all count.
func selected(ctx context.Context, c *preset.Conditions, expression string) (may, must kinds) {
	if expression == "" {
		return ^kinds(0), ^kinds(0)
	}
	for i, m := range makers() {
		switch ask(ctx, c, expression, m) {
		case always:
			must |= 1 << i
			may |= 1 << i
		case maybe:
			may |= 1 << i
		case never:
		}
	}
	if may == 0 {
		may = ^kinds(0)
	}
	return may, must
}

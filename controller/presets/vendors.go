// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// maker is one kind of devices of one vendor, and what pods need from the node to use them.
type maker struct {
	vendor string
	kind   device.Kind
	// needs is what pods cannot do without. Empty: an image can bring all that it needs.
	needs string
}

// makers are those that the driver knows. The driver library of NVIDIA has to be the one of the kernel module, so no image can bring it.
// What AMD, Intel and XRT have in user space speaks to the kernel by stable interfaces, and images usually bring it.
func makers() []maker {
	return []maker{
		{vendor: "nvidia", kind: device.KindGPU, needs: "the libraries of the node's driver"},
		{vendor: "amd", kind: device.KindGPU},
		{vendor: "intel", kind: device.KindGPU},
		{vendor: "amd", kind: device.KindFPGA},
		{vendor: "intel", kind: device.KindFPGA},
		{vendor: "host", kind: device.KindHost},
	}
}

// device is one of which nothing but its maker is known.
func (m maker) device() *preset.Device {
	kind := string(m.kind)
	return &preset.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		device.AttributeVendor: {StringValue: &m.vendor},
		"type":                 {StringValue: &kind},
	}}
}

// answer is what a condition says of a device of which only the maker is known.
type answer int

const (
	never  answer = iota // whatever the rest is
	maybe                // it asks for something else
	always               // whatever the rest is
)

// ask evaluates a condition. What it asks beside the maker is an error to CEL, unless the answer is plain without.
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

// kinds is a set of makers, by their place in the table.
type kinds uint8

// selected are the makers of which a condition may hold for a device. A condition that holds for none of the table may be about others:
// then nothing is known.
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

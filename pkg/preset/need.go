// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// Need is what programs need beside the nodes of a device.
type Need struct {
	// What is a plural: "the libraries of the node's driver".
	What string
	// Shipped is the name of the ClusterDevicePreset of Fettle's that gives it.
	Shipped string
	// FromNode says that only the node has it. An image can bring the rest.
	FromNode bool
}

// NeedOf returns what programs need of a device, by its published attributes. It returns false for a device that needs nothing, such as one
// for a virtual machine, which has its own driver.
func NeedOf(d *Device) (Need, bool) {
	text := func(name resourceapi.QualifiedName) string { return device.StringOf(d.Attributes[name]) }
	vendor, kind, backend := text(device.AttributeVendor), text(device.AttributeType), text(device.AttributeBackend)
	for _, p := range vendors.Presets() {
		isFor := p.Vendor == vendor && slices.Contains(p.Types, kind)
		if p.Backend != "" {
			isFor = p.Backend == backend && kind == string(device.KindFPGA)
		}
		if isFor {
			return Need{What: p.Needs, Shipped: p.Name + "." + v1alpha1.DriverName, FromNode: p.FromNode}, true
		}
	}
	return Need{}, false
}

// GivesFiles reports whether a preset gives files of the node, among which what a device needs could be.
func (p *Preset) GivesFiles() bool { return givesFiles(&p.Rules) || p.Driver != nil }

func givesFiles(r *v1alpha1.PresetRules) bool {
	return len(r.Libraries) > 0 || slices.ContainsFunc(r.Mounts, func(m v1alpha1.PresetMount) bool { return m.Scratch == nil })
}

// GivesFiles reports whether presets give a request files of the node.
func (r *Request) GivesFiles() bool {
	return len(r.Libraries) > 0 || len(r.Drivers) > 0 || slices.ContainsFunc(r.Mounts, func(m Mount) bool { return m.Scratch == nil })
}

// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
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
//
// NVIDIA's libraries must match the kernel module, so no image can bring them. Other vendors' use stable kernel interfaces.
func NeedOf(d *Device) (Need, bool) {
	text := func(name resourceapi.QualifiedName) string { return device.StringOf(d.Attributes[name]) }
	kind := text(device.AttributeType)
	gpu := func(parts ...string) bool { return kind == string(device.KindGPU) || slices.Contains(parts, kind) }
	fpga := func(backend string) bool {
		return kind == string(device.KindFPGA) && text(device.AttributeBackend) == backend
	}
	switch vendor := text(device.AttributeVendor); {
	case vendor == "nvidia" && gpu(device.TypeMIG):
		return Need{What: "the libraries of the node's driver", Shipped: shipped("nvidia"), FromNode: true}, true
	case vendor == "amd" && gpu(device.TypePartition, device.TypeVF):
		return Need{What: "ROCm's libraries", Shipped: shipped("amd")}, true
	case vendor == "intel" && gpu(device.TypeVF):
		return Need{What: "the drivers for Level Zero and OpenCL", Shipped: shipped("intel")}, true
	case fpga("xrt"):
		return Need{What: "XRT's libraries", Shipped: shipped("xrt")}, true
	case fpga("dfl"):
		return Need{What: "OPAE's libraries", Shipped: shipped("opae")}, true
	}
	return Need{}, false
}

func shipped(vendor string) string { return vendor + "." + v1alpha1.DriverName }

// GivesFiles reports whether a preset gives files of the node, among which what a device needs could be.
func (p *Preset) GivesFiles() bool { return givesFiles(&p.Rules) || p.Driver != nil }

func givesFiles(r *v1alpha1.PresetRules) bool {
	return len(r.Libraries) > 0 || slices.ContainsFunc(r.Mounts, func(m v1alpha1.PresetMount) bool { return m.Scratch == nil })
}

// GivesFiles reports whether presets give a request files of the node.
func (r *Request) GivesFiles() bool {
	return len(r.Libraries) > 0 || len(r.Drivers) > 0 || slices.ContainsFunc(r.Mounts, func(m Mount) bool { return m.Scratch == nil })
}

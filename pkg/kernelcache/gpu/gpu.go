// SPDX-License-Identifier: Apache-2.0

// Package gpu takes from a GPU's published attributes what says whether a kernel cache fits it.
package gpu

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Of returns what counts of a device. A GPU whose attributes do not tell its architecture has none, which is for Cache.Fits to say.
func Of(d device.Device) (kernelcache.Device, error) {
	if d.Kind != device.KindGPU {
		return kernelcache.Device{}, fmt.Errorf("device %s is no GPU but of kind %q: kernel caches are for GPUs", d.Name, d.Kind)
	}
	text := func(name resourceapi.QualifiedName) string { return device.StringOf(d.Attributes[name]) }
	switch vendor := text(device.AttributeVendor); vendor {
	case "nvidia":
		return kernelcache.NVIDIADevice(d.Name, text(device.AttributeComputeCapability), text(device.AttributeDriverVersion)), nil
	case "amd":
		return kernelcache.AMDDevice(d.Name, text(device.AttributeArchitecture)), nil
	default:
		// Intel's compute runtime, and others: no cache that is known here is for them.
		return kernelcache.Device{Name: d.Name, Backend: vendor}, nil
	}
}

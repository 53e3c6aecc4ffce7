// SPDX-License-Identifier: Apache-2.0

// Package drivers says what the classes, attributes, configurations and node labels of other vendors' GPU drivers are for Fettle. It knows
// words and expressions only: package convert finds them in documents.
//
// Sources: the drivers gpu.nvidia.com (kubernetes-sigs/dra-driver-nvidia-gpu), gpu.amd.com (ROCm/k8s-gpu-dra-driver), gpu.intel.com
// (intel/intel-resource-drivers-for-kubernetes) and gpu.example.com (kubernetes-sigs/dra-example-driver) as of 2026-08.
package drivers

import (
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Driver is one whose YAML can be converted.
type Driver struct {
	// Name is the driver's, which is also the domain of its attributes.
	Name string
	// Vendor is the value of Fettle's attribute vendor. Empty: the driver has devices of no vendor.
	Vendor string
	// types are the values of the attribute type, with those of Fettle.
	types map[string]string
	// attributes and capacities are by the driver's name for them.
	attributes map[string]rule
	capacities map[string]rule
}

// The names of the drivers.
const (
	NVIDIA  = "gpu.nvidia.com"
	AMD     = "gpu.amd.com"
	Intel   = "gpu.intel.com"
	Example = "gpu.example.com"
)

// Lookup returns a driver. Nil: it is none of those that are known.
func Lookup(name string) *Driver {
	switch name {
	case NVIDIA:
		return nvidia()
	case AMD:
		return amd()
	case Intel:
		return intel()
	case Example:
		return example()
	}
	return nil
}

// Class is what a DeviceClass of another driver is for Fettle.
type Class struct {
	Driver string
	// Name is the name of Fettle's class.
	Name string
	// Vendor narrows the class to the devices of one vendor. Empty: the class gives out no others.
	Vendor string
}

// LookupClass returns what a DeviceClass that a driver's chart makes is for Fettle.
func LookupClass(name string) (Class, bool) {
	class, ok := map[string]Class{
		"gpu.nvidia.com":      {NVIDIA, VendorClass("nvidia"), ""},
		"mig.nvidia.com":      {NVIDIA, PartClass(device.TypeMIG), ""},
		"vfio.gpu.nvidia.com": {NVIDIA, PartClass(device.TypeVFIO), "nvidia"},
		"gpu.amd.com":         {AMD, VendorClass("amd"), ""},
		"gpu.amd.com-spx":     {AMD, VendorClass("amd"), ""},
		"gpu.intel.com":       {Intel, VendorClass("intel"), ""},
		"gpu-vfio.intel.com":  {Intel, PartClass(device.TypeVFIO), "intel"},
	}[name]
	return class, ok
}

// VendorClass is the name of the shipped class of a vendor's GPUs.
func VendorClass(vendor string) string { return vendor + "." + PlainClass() }

// PartClass is the name of the shipped class of a type of parts of GPUs.
func PartClass(part string) string { return part + "." + PlainClass() }

// PlainClass is the name of the shipped class of all GPUs.
func PlainClass() string { return string(device.KindGPU) + "." + v1alpha1.DriverName }

// ofVendors are the drivers whose names and classes [Mentioned] looks for.
func ofVendors() []string {
	return []string{NVIDIA, "mig.nvidia.com", AMD, Intel, "gpu-vfio.intel.com"}
}

// Mentioned says whether a text may name one of the vendors' drivers or their classes.
func Mentioned(text string) bool {
	return slices.ContainsFunc(ofVendors(), func(name string) bool { return strings.Contains(text, name) })
}

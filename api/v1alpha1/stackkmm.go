// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of a driver that KMM loads, as the CRD has them.
const (
	maxKernelMappings, maxKernelRelease, maxKernelRegexp = 64, 64, 512
	maxModuleImage, maxModuleName, maxModuleWords        = 512, 63, 32
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	kernelReleaseForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)
	moduleImageForm   = regexp.MustCompile(`^[a-z0-9]([A-Za-z0-9._:/@-]|[$][{][A-Z_]+[}])*$`)
	moduleNameForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*$`)
	nodeLabelForm     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

// KMMDriver is a driver that the operator Kernel Module Management loads on the stack's nodes, by a Module that the stack writes.
type KMMDriver struct {
	// Version is the driver's. It is the value of a node's label, by which KMM knows the nodes that get it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Version string `json:"version"`
	// ModuleVersion is the version that the kernel's module has to report, as in the column Drivers of AcceleratorNodes: 580.95.5, or
	// as the driver prints it: 580.95.05, 6.19.14.31400000. Unset: any.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._~:+-]*$`
	// +optional
	ModuleVersion string `json:"moduleVersion,omitempty"`
	// KernelMappings say which image has the module for which kernel. The first that matches counts. A node whose kernel matches none gets
	// no driver.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	KernelMappings []KernelMapping `json:"kernelMappings"`
	// Modprobe is how the module is loaded.
	Modprobe KMMModprobe `json:"modprobe"`
	// PullSecret is the name of a Secret in the namespace of drivers.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	PullSecret string `json:"pullSecret,omitempty"`
}

// KernelMapping is the image of a module for some kernels.
//
// +kubebuilder:validation:XValidation:rule="has(self.literal) != has(self.regexp)",message="set either literal or regexp"
type KernelMapping struct {
	// Literal is the release of a kernel, as uname prints it. KMM leaves out a plus sign at its end, and so does this.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._+-]*$`
	// +optional
	Literal string `json:"literal,omitempty"`
	// Regexp is a regular expression in Go's syntax for releases. Without ^ and $ it may match a part.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Regexp string `json:"regexp,omitempty"`
	// Image is the image with the module. KMM replaces ${KERNEL_FULL_VERSION} with the release, and other variables of its own.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([A-Za-z0-9._:/@-]|[$][{][A-Z_]+[}])*$`
	Image string `json:"image"`
}

// KMMModprobe is how KMM loads a module.
type KMMModprobe struct {
	// ModuleName is the module: nvidia.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_-]*$`
	ModuleName string `json:"moduleName"`
	// Parameters are those of the module, as NAME=VALUE.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +optional
	Parameters []string `json:"parameters,omitempty"`
	// DirName is the directory in the image that has lib/modules. Unset: /opt.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && self != '/' && !self.contains('//') && !self.contains('/.') && !self.endsWith('/')",message="must be absolute and clean"
	// +optional
	DirName string `json:"dirName,omitempty"`
	// FirmwarePath is a directory of the image whose files are copied to where the node's kernel looks for firmware.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && self != '/' && !self.contains('//') && !self.contains('/.') && !self.endsWith('/')",message="must be absolute and clean"
	// +optional
	FirmwarePath string `json:"firmwarePath,omitempty"`
	// ModulesLoadingOrder are modules that depend on each other without the image saying so, each before the one that it needs. The first
	// is moduleName.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	ModulesLoadingOrder []string `json:"modulesLoadingOrder,omitempty"`
}

func (d *KMMDriver) validate(at *field.Path) field.ErrorList {
	faults := textFaults(d.Version, maxDriverVersion, nodeLabelForm, "the value of a label", at.Child("version"))
	if d.ModuleVersion != "" {
		faults = append(faults, textFaults(d.ModuleVersion, maxModuleVersion, moduleVersionForm, "a version", at.Child("moduleVersion"))...)
	}
	mappings := at.Child("kernelMappings")
	if len(d.KernelMappings) == 0 {
		faults = append(faults, emptyList(mappings))
	}
	faults = append(faults, atMost(len(d.KernelMappings), maxKernelMappings, mappings)...)
	for i := range d.KernelMappings {
		faults = append(faults, d.KernelMappings[i].validate(mappings.Index(i))...)
	}
	faults = append(faults, d.Modprobe.validate(at.Child("modprobe"))...)
	if d.PullSecret != "" {
		faults = append(faults, objectNameFaults(d.PullSecret, at.Child("pullSecret"))...)
	}
	return faults
}

func (m *KernelMapping) validate(at *field.Path) field.ErrorList {
	faults := textFaults(m.Image, maxModuleImage, moduleImageForm, "an image", at.Child("image"))
	switch {
	case (m.Literal != "") == (m.Regexp != ""):
		return append(faults, field.Required(at.Child("literal"), "set either literal or regexp"))
	case m.Literal != "":
		return append(faults, textFaults(m.Literal, maxKernelRelease, kernelReleaseForm, "the release of a kernel", at.Child("literal"))...)
	}
	if long := noLonger(m.Regexp, maxKernelRegexp, at.Child("regexp")); len(long) > 0 {
		return append(faults, long...)
	}
	if _, err := regexp.Compile(m.Regexp); err != nil {
		faults = append(faults, field.Invalid(at.Child("regexp"), m.Regexp, "must be a regular expression: "+err.Error()))
	}
	return faults
}

func (m *KMMModprobe) validate(at *field.Path) field.ErrorList {
	faults := textFaults(m.ModuleName, maxModuleName, moduleNameForm, "the name of a module", at.Child("moduleName"))
	faults = append(faults, wordFaults(m.Parameters, at.Child("parameters"))...)
	for _, dir := range []struct{ name, path string }{{"dirName", m.DirName}, {"firmwarePath", m.FirmwarePath}} {
		if dir.path != "" {
			faults = append(faults, driverPathFaults(dir.path, false, at.Child(dir.name))...)
		}
	}
	order := at.Child("modulesLoadingOrder")
	faults = append(faults, atMost(len(m.ModulesLoadingOrder), maxModuleWords, order)...)
	for i, name := range m.ModulesLoadingOrder {
		faults = append(faults, textFaults(name, maxModuleName, moduleNameForm, "the name of a module", order.Index(i))...)
	}
	if len(m.ModulesLoadingOrder) > 0 && m.ModulesLoadingOrder[0] != m.ModuleName {
		faults = append(faults, field.Invalid(order.Index(0), m.ModulesLoadingOrder[0], "must be moduleName"))
	}
	return faults
}

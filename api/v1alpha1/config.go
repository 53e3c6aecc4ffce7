// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Config is an opaque configuration of this driver: *AcceleratorConfig, *FPGAConfig, *GPUConfig or *HostConfig.
//
// +kubebuilder:object:generate=false
// +kubebuilder:skip
type Config interface {
	// Default fills in what the author may leave out when nothing else applies to the request.
	Default()
	// Validate reports every fault below path, in the order of the fields. fromClass says whether a DeviceClass carries the
	// configuration, which alone may set a policy.
	Validate(fromClass bool, path *field.Path) field.ErrorList
}

// The kinds of configuration.
const (
	KindAcceleratorConfig = "AcceleratorConfig"
	KindFPGAConfig        = "FPGAConfig"
	KindGPUConfig         = "GPUConfig"
	KindHostConfig        = "HostConfig"
)

// configKinds is the one table of the kinds that DecodeConfig, admission, Prepare and the CLI accept.
func configKinds() map[string]func() Config {
	return map[string]func() Config{
		KindAcceleratorConfig: func() Config { return &AcceleratorConfig{} },
		KindFPGAConfig:        func() Config { return &FPGAConfig{} },
		KindGPUConfig:         func() Config { return &GPUConfig{} },
		KindHostConfig:        func() Config { return &HostConfig{} },
	}
}

// ConfigKinds lists the kinds of configuration, sorted.
func ConfigKinds() []string {
	return slices.Sorted(maps.Keys(configKinds()))
}

// maxAllowedNamespaces keeps the admission expression that reads the list within its cost budget. The 10 KiB that Kubernetes
// allows an opaque configuration would be reached at a few hundred anyway.
const maxAllowedNamespaces = 128

// Policy is what an administrator decides for every claim of a DeviceClass. A claim cannot carry one, so it always wins.
type Policy struct {
	// AllowedNamespaces are the namespaces whose claims may use the class. Unset: every namespace. When several classes
	// apply to one request, a namespace must be in the list of each.
	AllowedNamespaces []string `json:"allowedNamespaces,omitempty"`
}

// policyOrigin is the fault of a policy outside a class.
func policyOrigin(fromClass bool, path *field.Path) field.ErrorList {
	if fromClass {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "only a DeviceClass may set a policy: remove it from the claim")}
}

func (p *Policy) validate(path *field.Path) field.ErrorList {
	path = path.Child("allowedNamespaces")
	if p.AllowedNamespaces != nil && len(p.AllowedNamespaces) == 0 {
		return field.ErrorList{field.Required(path, "name at least one namespace, or leave the field out to allow all")}
	}
	var faults field.ErrorList
	if len(p.AllowedNamespaces) > maxAllowedNamespaces {
		faults = append(faults, field.TooMany(path, len(p.AllowedNamespaces), maxAllowedNamespaces))
	}
	first := make(map[string]int, len(p.AllowedNamespaces))
	for i, name := range p.AllowedNamespaces {
		faults = append(faults, labelFaults(name, path.Index(i))...)
		if j, twice := first[name]; twice {
			fault := field.Duplicate(path.Index(i), name)
			fault.Detail = fmt.Sprintf("already at index %d", j)
			faults = append(faults, fault)
			continue
		}
		first[name] = i
	}
	return faults
}

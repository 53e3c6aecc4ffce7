// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Config is an opaque configuration of this driver: *GPUConfig, *FPGAConfig or *HostConfig.
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
	KindFPGAConfig = "FPGAConfig"
	KindGPUConfig  = "GPUConfig"
	KindHostConfig = "HostConfig"
)

// configKinds is the one table of the kinds that DecodeConfig, admission, Prepare and the CLI accept.
func configKinds() map[string]func() Config {
	return map[string]func() Config{
		KindFPGAConfig: func() Config { return &FPGAConfig{} },
		KindGPUConfig:  func() Config { return &GPUConfig{} },
		KindHostConfig: func() Config { return &HostConfig{} },
	}
}

// ConfigKinds lists the kinds of configuration, sorted.
func ConfigKinds() []string {
	return slices.Sorted(maps.Keys(configKinds()))
}

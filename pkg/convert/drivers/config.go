// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/manifest"
)

// Config is what an opaque configuration became.
type Config struct {
	// Parameters are those of a GPUConfig. Nil: nothing of the configuration has to be said, and it can be left out.
	Parameters *v1alpha1.GPUConfig
	// Notes say what was left out and why.
	Notes []string
}

// foreignConfig has the fields of all kinds of configurations that the drivers' APIs have (resource.nvidia.com/v1beta1,
// gpu.resource.amd.com/v1alpha1 and gpu.resource.example.com/v1alpha1).
type foreignConfig struct {
	metav1.TypeMeta `json:",inline"`

	Sharing *foreignSharing `json:"sharing"`
	IOMMU   *struct {
		BackendPolicy   string `json:"backendPolicy"`
		EnableAPIDevice bool   `json:"enableAPIDevice"`
	} `json:"iommu"`
}

// foreignSharing is how containers of a claim share its devices.
type foreignSharing struct {
	Strategy          string `json:"strategy"`
	TimeSlicingConfig *struct {
		Interval v1alpha1.TimeSliceInterval `json:"interval"`
	} `json:"timeSlicingConfig"`
	MPSConfig *struct {
		DefaultActiveThreadPercentage *int32             `json:"defaultActiveThreadPercentage"`
		DefaultPinnedDeviceMemory     *resource.Quantity `json:"defaultPinnedDeviceMemoryLimit"`
		DefaultPerDevicePinnedMemory  map[string]string  `json:"defaultPerDevicePinnedMemoryLimit"`
		MultiUser                     *bool              `json:"multiUser"`
	} `json:"mpsConfig"`
	SpacePartitioningConfig *struct {
		PartitionCount int `json:"partitionCount"`
	} `json:"spacePartitioningConfig"`
}

// ConvertConfig reads the parameters of an opaque configuration of one of the known drivers. Unknown fields are errors, as they are for
// those drivers. The error has all that cannot be converted.
func ConvertConfig(driver string, raw []byte) (Config, error) {
	var from foreignConfig
	unknown, err := strictjson.UnmarshalStrict(raw, &from)
	if err != nil {
		return Config{}, fmt.Errorf("a field has a value of the wrong type: %w", manifest.WithoutTypes(err))
	}
	if len(unknown) > 0 {
		return Config{}, errors.Join(unknown...)
	}
	known := map[string][]string{
		NVIDIA: {"GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"}, AMD: {"GpuConfig", "VfioDeviceConfig"}, Example: {"GpuConfig"},
	}[driver]
	if !slices.Contains(known, from.Kind) {
		return Config{}, fmt.Errorf("kind %q: Fettle has nothing for it; what is known of %s is %q", from.Kind, driver, known)
	}
	if from.IOMMU != nil {
		return from.passthrough()
	}
	return from.sharing()
}

// passthrough leaves out how a container reaches the IOMMU: Fettle gives it the node of the group and /dev/vfio/vfio.
func (f *foreignConfig) passthrough() (Config, error) {
	if f.IOMMU.BackendPolicy == "PreferIommuFD" {
		return Config{}, errors.New("iommu.backendPolicy PreferIommuFD: Fettle gives the group's node, never iommufd: write LegacyOnly")
	}
	return Config{Notes: []string{"iommu is left out: a container always gets /dev/vfio/vfio and the node of the device's group"}}, nil
}

// sharing converts how containers share a GPU.
func (f *foreignConfig) sharing() (Config, error) {
	s := f.Sharing
	if s == nil {
		return Config{Notes: []string{fmt.Sprintf("the empty %s is left out", f.Kind)}}, nil
	}
	if err := s.ofStrategy(); err != nil {
		return Config{}, err
	}
	out := &v1alpha1.GPUSharing{Strategy: v1alpha1.SharingStrategy(s.Strategy)}
	switch {
	case s.Strategy == string(v1alpha1.SharingTimeSlicing):
		if s.TimeSlicingConfig == nil || s.TimeSlicingConfig.Interval == "" || s.TimeSlicingConfig.Interval == v1alpha1.IntervalDefault {
			return Config{Notes: []string{"TimeSlicing with the default interval is left out: it is what a GPU does"}}, nil
		}
		out.TimeSlicing = &v1alpha1.TimeSlicing{Interval: s.TimeSlicingConfig.Interval}
	case s.Strategy == string(v1alpha1.SharingMPS):
		if err := s.mps(out); err != nil {
			return Config{}, err
		}
	default:
		return Config{}, fmt.Errorf("sharing.strategy %q: Fettle has no such strategy", s.Strategy)
	}
	config := &v1alpha1.GPUConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGPUConfig}, Sharing: out,
	}
	if faults := config.Validate(false, field.NewPath("")); len(faults) > 0 {
		return Config{}, faults.ToAggregate()
	}
	notes := []string{fmt.Sprintf("a PartitionPolicy must have %s in spec.devices.sharing.strategies for the GPUs", s.Strategy)}
	if s.MPSConfig != nil && len(s.MPSConfig.DefaultPerDevicePinnedMemory) > 0 {
		notes = append(notes, fmt.Sprintf("defaultPerDevicePinnedMemoryLimit of %s is the limit of all devices of the request now",
			strings.Join(slices.Sorted(maps.Keys(s.MPSConfig.DefaultPerDevicePinnedMemory)), ", ")))
	}
	return Config{Parameters: config, Notes: notes}, nil
}

// ofStrategy refuses the parameters of another strategy than the one that holds, as the drivers do.
func (s *foreignSharing) ofStrategy() error {
	for _, other := range []struct {
		strategy, name string
		set            bool
	}{
		{string(v1alpha1.SharingTimeSlicing), "timeSlicingConfig", s.TimeSlicingConfig != nil},
		{string(v1alpha1.SharingMPS), "mpsConfig", s.MPSConfig != nil},
		{"SpacePartitioning", "spacePartitioningConfig", s.SpacePartitioningConfig != nil},
	} {
		if other.set && other.strategy != s.Strategy {
			return fmt.Errorf("sharing.%s: it is of strategy %s, and sharing.strategy is %q: leave it out", other.name, other.strategy, s.Strategy)
		}
	}
	return nil
}

// mps converts the parameters of NVIDIA's Multi-Process Service.
func (s *foreignSharing) mps(out *v1alpha1.GPUSharing) error {
	from := s.MPSConfig
	if from == nil {
		return nil
	}
	out.MPS = &v1alpha1.MPS{
		ActiveThreadPercentage: from.DefaultActiveThreadPercentage, PinnedMemoryLimit: from.DefaultPinnedDeviceMemory, MultiUser: from.MultiUser,
	}
	limits := slices.Compact(slices.Sorted(maps.Values(from.DefaultPerDevicePinnedMemory)))
	switch {
	case len(limits) > 1:
		return errors.New("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: Fettle has one limit for all devices of a request")
	case len(limits) == 1:
		limit, err := resource.ParseQuantity(limits[0])
		if err != nil {
			return fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: %q: %w", limits[0], err)
		}
		if all := out.MPS.PinnedMemoryLimit; all != nil && all.Cmp(limit) != 0 {
			return errors.New("sharing.mpsConfig: the limit of a device differs from defaultPinnedDeviceMemoryLimit, and Fettle has one limit " +
				"for all devices of a request")
		}
		out.MPS.PinnedMemoryLimit = &limit
	}
	return nil
}

// Marshal writes the parameters.
func (c Config) Marshal() ([]byte, error) { return json.Marshal(c.Parameters) }

// SPDX-License-Identifier: Apache-2.0

// Package admission says what is wrong with this driver's configurations in the objects that carry them, before a pod waits
// for one: ResourceClaims, ResourceClaimTemplates and DeviceClasses. The webhook and the CLI ask the same functions. Entries
// of other drivers are never looked at, and nothing here is the last word: Prepare on the node decides. Presets, PartitionPolicies,
// AcceleratorStacks and TrustPolicies are judged as a whole.
package admission

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Validate returns every fault of this driver's configurations in a resource.k8s.io/v1 ResourceClaim, ResourceClaimTemplate or
// DeviceClass, and of a DevicePreset, ClusterDevicePreset, PartitionPolicy, AcceleratorStack or TrustPolicy, each with the path of its
// field in the object, in the order of the object. Any other object has none.
func Validate(object runtime.Object) field.ErrorList {
	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		return claimFaults(o.Spec.Devices, spec.Child("devices"))
	case *resourceapi.ResourceClaimTemplate:
		return claimFaults(o.Spec.Spec.Devices, spec.Child("spec", "devices"))
	case *resourceapi.DeviceClass:
		return classFaults(o.Spec.Config, spec.Child("config"))
	case *v1alpha1.PartitionPolicy:
		var policies policy.Resolver
		return policies.Check(&o.Spec, spec)
	case *v1alpha1.AcceleratorStack:
		return o.Spec.Validate(spec)
	case *v1alpha1.TrustPolicy:
		return o.Spec.Validate(spec) // as the controller and the nodes do, which read the trusted roots too
	case interface {
		Common() v1alpha1.CommonDevicePreset
	}:
		p := o.Common()
		return append(p.Validate(spec), conditionFaults(p.Spec.DeviceSelector, spec)...)
	default:
		return nil
	}
}

// conditionFaults are those of a preset's CEL, which is compiled here and by no marker of the API.
func conditionFaults(s *v1alpha1.PresetDeviceSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var conditions preset.Conditions
	var faults field.ErrorList
	check := func(expression string, at *field.Path) {
		if expression == "" {
			return
		}
		if err := conditions.Check(expression); err != nil {
			faults = append(faults, field.Invalid(at, expression, "must be CEL about a device, as in a DeviceClass: "+oneLine(err)))
		}
	}
	check(s.CEL, path.Child("deviceSelector", "cel"))
	if s.Absent != nil {
		check(s.Absent.CEL, path.Child("deviceSelector", "absent", "cel"))
	}
	return faults
}

func classFaults(entries []resourceapi.DeviceClassConfiguration, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i, entry := range entries {
		_, wrong := configOf(entry.DeviceConfiguration, true, path.Index(i))
		faults = append(faults, wrong...)
	}
	return faults
}

func claimFaults(devices resourceapi.DeviceClaim, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i, entry := range devices.Config {
		config, wrong := configOf(entry.DeviceConfiguration, false, path.Child("config").Index(i))
		faults = append(faults, wrong...)
		if host, ok := config.(*v1alpha1.HostConfig); ok && host.MountPath != "" {
			at := path.Child("config").Index(i).Child("opaque", "parameters", "mountPath")
			faults = append(faults, mountPathFaults(host.MountPath, entry.Requests, devices.Requests, at)...)
		}
	}
	return faults
}

// configOf decodes and validates one entry. The config is nil when the entry is another driver's or has faults.
func configOf(entry resourceapi.DeviceConfiguration, fromClass bool, path *field.Path) (v1alpha1.Config, field.ErrorList) {
	if entry.Opaque == nil || entry.Opaque.Driver != v1alpha1.DriverName {
		return nil, nil
	}
	path = path.Child("opaque", "parameters")
	config, faults := v1alpha1.DecodeConfig(entry.Opaque.Parameters.Raw, path)
	if config == nil {
		return nil, faults
	}
	if faults := config.Validate(fromClass, path); len(faults) > 0 {
		return nil, faults
	}
	return config, nil
}

// mountPathFaults finds the requests that the entry names and that ask for several devices, which cannot all be at one path.
// An entry that names no request may be meant for fewer than it seems, so only Prepare can judge it.
func mountPathFaults(dir string, named []string, requests []resourceapi.DeviceRequest, at *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, name := range named {
		if count := requestCount(name, requests); count > 1 {
			faults = append(faults, field.Invalid(at, dir, fmt.Sprintf("request %s asks for %d devices and each needs a path of its own: "+
				"split it into requests of one device with a mountPath each, or leave mountPath out", name, count)))
		}
	}
	return faults
}

// requestCount is how many devices the request ("main") or alternative ("main/sub") asks for. It is 0 where only the
// scheduler can tell: allocation mode All, and a main request whose alternatives may differ.
func requestCount(name string, requests []resourceapi.DeviceRequest) int64 {
	main, sub, isSub := strings.Cut(name, "/")
	for _, request := range requests {
		if request.Name != main {
			continue
		}
		if request.Exactly != nil && !isSub {
			return request.Exactly.Count
		}
		for _, alternative := range request.FirstAvailable {
			if isSub && alternative.Name == sub {
				return alternative.Count
			}
		}
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// Expected is what Prepare will decide for a request of a claim that is not allocated yet, as far as claim and class tell. Paths of faults
// are those of the claim, or begin with DeviceClass[NAME].
type Expected struct {
	// Result has no pool and no device.
	Result Result
	// Faults are the contradictions of configurations and what the class forbids, but for bitstreams: see Allows.
	Faults field.ErrorList

	paths *strings.Replacer
}

// Expectation is what Expect reads.
type Expectation struct {
	// Devices are those of the claim's spec, at Path in their object.
	Devices *resourceapi.DeviceClaim
	Path    *field.Path
	// Request is the request, "main", or an alternative, "main/sub".
	Request string
	// Kind is the kind of the devices that the class selects.
	Kind device.Kind
	// Class is the request's class.
	Class *resourceapi.DeviceClass
}

// Expect resolves one request as Resolve will do after the allocation. It leaves out configurations for other kinds of device, which may be
// for other requests. It returns false if a configuration cannot be decoded, which Validate reports.
func Expect(in Expectation) (Expected, bool) {
	var entries []resourceapi.DeviceAllocationConfiguration
	var paths []string
	add := func(source resourceapi.AllocationConfigSource, config resourceapi.DeviceConfiguration, path *field.Path) {
		paths = append(paths, configPath(len(entries)).String(), path.String())
		entries = append(entries, resourceapi.DeviceAllocationConfiguration{Source: source, DeviceConfiguration: config})
	}
	for i := range in.Class.Spec.Config {
		add(resourceapi.AllocationConfigSourceClass, in.Class.Spec.Config[i].DeviceConfiguration,
			field.NewPath("DeviceClass").Key(in.Class.Name).Child("spec", "config").Index(i))
	}
	for i := range in.Devices.Config {
		if c := &in.Devices.Config[i]; Named(c.Requests, in.Request) {
			add(resourceapi.AllocationConfigSourceClaim, c.DeviceConfiguration, in.Path.Child("config").Index(i))
		}
	}
	layers, faults := decodeLayers(entries, v1alpha1.DriverName)
	if len(faults) > 0 {
		return Expected{}, false
	}
	for i := range layers {
		_, kind := configKind(layers[i].config)
		layers[i].applies[0] = kind == in.Kind
	}
	expected := Expected{paths: strings.NewReplacer(paths...), Result: Result{Request: in.Request, Kind: in.Kind}}
	expected.Result.Config, faults = merge(layers, 0, in.Kind)
	faults = append(faults, fpgaFaults([]Result{expected.Result})...)
	expected.Faults = expected.rename(faults)
	return expected, true
}

// Allows says why a claim of a namespace will not be allowed to load a bitstream, as Result.Allows does.
func (e *Expected) Allows(namespace string, b *Bitstream) field.ErrorList {
	return e.rename(e.Result.Allows(namespace, b))
}

// At returns the path of the configuration's field, and false if neither class nor claim set it.
func (e *Expected) At(name string) (string, bool) {
	if e.Result.Config.Sources[name].Index < 0 {
		return "", false
	}
	return e.paths.Replace(e.Result.At(name).String()), true
}

// RequiresSignature returns the path of the policy that demands a signature, and nothing if none does.
func (e *Expected) RequiresSignature() string {
	if e.Result.Config.FPGA == nil {
		return ""
	}
	for i := range e.Result.Config.FPGA.Policies {
		if p := &e.Result.Config.FPGA.Policies[i]; p.Policy.RequireSignature {
			return e.paths.Replace(p.Path("requireSignature").String())
		}
	}
	return ""
}

// rename puts the paths of class and claim in the place of those of an allocation.
func (e *Expected) rename(faults field.ErrorList) field.ErrorList {
	for _, fault := range faults {
		fault.Field, fault.Detail = e.paths.Replace(fault.Field), e.paths.Replace(fault.Detail)
	}
	return faults
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FPGAConfig says what the FPGA regions of a request are programmed with before the pod starts. It is the opaque configuration of a
// ResourceClaim, a ResourceClaimTemplate or a DeviceClass; it is never an object of its own.
type FPGAConfig struct {
	metav1.TypeMeta `json:",inline"`

	// InterfaceID is the interface id that the allocated region must have: 32 hexadecimal digits, dashes allowed. Unset: the
	// bitstream's own says enough.
	InterfaceID string `json:"interfaceID,omitempty"`
	// Bitstream is what the region is programmed with. Unset: the region stays as it is.
	Bitstream *BitstreamSource `json:"bitstream,omitempty"`
	// Program is IfDifferent, Always or Never. Unset: IfDifferent.
	Program ProgramMode `json:"program,omitempty"`
	// DriverParams are set before the region is programmed, and what they were is restored on release.
	DriverParams *FPGADriverParams `json:"driverParams,omitempty"`
	// ResetBeforeUse resets the accelerator before the pod starts, also where nothing had to be programmed. Unset: true.
	ResetBeforeUse *bool `json:"resetBeforeUse,omitempty"`
	// OnRelease is what happens to the region when the claim is released: Blank, Reset or Keep. Unset: Reset.
	OnRelease FPGARelease `json:"onRelease,omitempty"`
	// Timeout bounds the programming of one region, 1s to 10m. Unset: 2m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Policy is the administrator's: only a DeviceClass may carry it.
	Policy *FPGAPolicy `json:"policy,omitempty"`
}

// BitstreamSource names a bitstream, by exactly one of its fields. A name of a file on the host is none of them.
type BitstreamSource struct {
	// Name is an object's.
	Name string `json:"name,omitempty"`
	// Kind is the object's: FPGABitstream, in the claim's own namespace, or ClusterFPGABitstream. Unset: FPGABitstream.
	Kind string `json:"kind,omitempty"`
	// Ref is an OCI artifact by digest: registry/repository@sha256:DIGEST.
	Ref string `json:"ref,omitempty"`
}

// The kinds of object that a BitstreamSource may name.
const (
	KindFPGABitstream        = "FPGABitstream"
	KindClusterFPGABitstream = "ClusterFPGABitstream"
)

// ProgramMode says when a region is programmed.
type ProgramMode string

// The modes.
const (
	// ProgramIfDifferent leaves a region that is known to hold the same bytes, by their digest, as it is.
	ProgramIfDifferent ProgramMode = "IfDifferent"
	// ProgramAlways programs in any case.
	ProgramAlways ProgramMode = "Always"
	// ProgramNever uses the region only if the accelerator in it is the bitstream's already.
	ProgramNever ProgramMode = "Never"
)

// FPGARelease is what happens to a region on release.
type FPGARelease string

// What can happen.
const (
	// FPGAReleaseBlank programs the blank image for the region's interface, a ClusterFPGABitstream that says it is one.
	FPGAReleaseBlank FPGARelease = "Blank"
	// FPGAReleaseReset resets the accelerator. Its logic stays until the region is programmed again.
	FPGAReleaseReset FPGARelease = "Reset"
	// FPGAReleaseKeep leaves the region alone for the namespace's next claim. A class must allow it.
	FPGAReleaseKeep FPGARelease = "Keep"
)

// FPGADriverParams are the settings that a region's kernel driver takes. A class must allow each.
type FPGADriverParams struct {
	// ClockMHz and ClockLowMHz are the two user clocks. Unset: what the bitstream's metadata asks for.
	ClockMHz    *int32 `json:"clockMHz,omitempty"`
	ClockLowMHz *int32 `json:"clockLowMHz,omitempty"`
	// LTR is the port's latency tolerance report, on or off.
	LTR *bool `json:"ltr,omitempty"`
	// Debug is the debug level of drivers that have one, 0 to 15.
	Debug *int32 `json:"debug,omitempty"`
}

// The names of driver parameters, as a policy and the steps use them.
const (
	ParamClock    = "clockMHz"
	ParamClockLow = "clockLowMHz"
	ParamLTR      = "ltr"
	ParamDebug    = "debug"
)

// DriverParam is one setting.
type DriverParam struct {
	Name  string
	Value int32
}

// List gives what is set, in the order of the fields. A switch is 0 or 1.
func (p *FPGADriverParams) List() []DriverParam {
	if p == nil {
		return nil
	}
	var out []DriverParam
	add := func(name string, value *int32) {
		if value != nil {
			out = append(out, DriverParam{Name: name, Value: *value})
		}
	}
	add(ParamClock, p.ClockMHz)
	add(ParamClockLow, p.ClockLowMHz)
	if p.LTR != nil {
		var on int32
		if *p.LTR {
			on = 1
		}
		add(ParamLTR, &on)
	}
	add(ParamDebug, p.Debug)
	return out
}

const (
	minFPGATimeout     = time.Second
	maxFPGATimeout     = 10 * time.Minute
	defaultFPGATimeout = 2 * time.Minute
	maxClockMHz        = 1500
	maxDebug           = 15
)

// Default fills in what an author may leave out of a configuration that stands alone.
func (c *FPGAConfig) Default() {
	c.Program = cmp.Or(c.Program, ProgramIfDifferent)
	if c.ResetBeforeUse == nil {
		c.ResetBeforeUse = new(true)
	}
	c.OnRelease = cmp.Or(c.OnRelease, FPGAReleaseReset)
	if c.Timeout == nil {
		c.Timeout = &metav1.Duration{Duration: defaultFPGATimeout}
	}
	if c.Bitstream != nil && c.Bitstream.Name != "" && c.Bitstream.Kind == "" {
		c.Bitstream.Kind = KindFPGABitstream
	}
}

// Validate reports every fault of the configuration below path. A policy is a fault unless the configuration is from a class.
func (c *FPGAConfig) Validate(fromClass bool, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if c.InterfaceID != "" {
		if _, err := CanonicalID(c.InterfaceID); err != nil {
			faults = append(faults, field.Invalid(path.Child("interfaceID"), c.InterfaceID, err.Error()))
		}
	}
	if c.Bitstream != nil {
		faults = append(faults, c.Bitstream.validate(path.Child("bitstream"))...)
	}
	faults = append(faults, oneOf(c.Program, path.Child("program"), ProgramIfDifferent, ProgramAlways, ProgramNever)...)
	faults = append(faults, c.DriverParams.validate(path.Child("driverParams"))...)
	faults = append(faults, oneOf(c.OnRelease, path.Child("onRelease"), FPGAReleaseBlank, FPGAReleaseReset, FPGAReleaseKeep)...)
	faults = append(faults, timeoutFaults(c.Timeout, path.Child("timeout"))...)
	if c.Policy != nil {
		faults = append(faults, policyOrigin(fromClass, path.Child("policy"))...)
		faults = append(faults, c.Policy.validateFPGA(path.Child("policy"))...)
	}
	return faults
}

func timeoutFaults(timeout *metav1.Duration, path *field.Path) field.ErrorList {
	if timeout == nil || timeout.Duration >= minFPGATimeout && timeout.Duration <= maxFPGATimeout {
		return nil
	}
	return field.ErrorList{field.Invalid(path, timeout.Duration.String(), fmt.Sprintf("must be %s to %s", minFPGATimeout, maxFPGATimeout))}
}

// oneOf accepts the empty value, too.
func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

func (b *BitstreamSource) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	switch {
	case b.Name == "" && b.Ref == "":
		return field.ErrorList{field.Required(path, "set name, of an FPGABitstream, or ref, an OCI artifact by digest")}
	case b.Name != "" && b.Ref != "":
		return field.ErrorList{field.Forbidden(path.Child("ref"), "name says already which bitstream: remove one of the two")}
	case b.Ref != "":
		if b.Kind != "" {
			faults = append(faults, field.Forbidden(path.Child("kind"), "is the kind of the object that name names: remove it"))
		}
		return append(faults, pinnedRefFaults(b.Ref, path.Child("ref"))...)
	}
	faults = append(faults, objectNameFaults(b.Name, path.Child("name"))...)
	return append(faults, oneOf(b.Kind, path.Child("kind"), KindFPGABitstream, KindClusterFPGABitstream)...)
}

func (p *FPGADriverParams) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, param := range p.List() {
		low, high := paramRange(param.Name)
		if param.Value < low || param.Value > high {
			faults = append(faults, field.Invalid(path.Child(param.Name), param.Value, fmt.Sprintf("must be %d to %d", low, high)))
		}
	}
	return faults
}

// paramRange is what a parameter can be at all; a policy narrows it.
func paramRange(name string) (low, high int32) {
	switch name {
	case ParamClock, ParamClockLow:
		return 1, maxClockMHz
	case ParamLTR:
		return 0, 1
	default:
		return 0, maxDebug
	}
}

// CanonicalID is the form in which interface and accelerator ids are compared and published: 32 lower-case hexadecimal digits. All 0
// and all f mean that there is none, and are refused.
func CanonicalID(text string) (string, error) {
	const digits = 32
	id := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	if len(id) != digits || strings.Trim(id, "0123456789abcdef") != "" {
		return "", fmt.Errorf("must be %d hexadecimal digits, with or without dashes", digits)
	}
	if strings.Trim(id, "0") == "" || strings.Trim(id, "f") == "" {
		return "", fmt.Errorf("must not be all 0 or all f, which means that there is none")
	}
	return id, nil
}

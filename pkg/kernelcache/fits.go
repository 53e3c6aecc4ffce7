// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"fmt"
	"slices"
	"strings"
)

// ReasonCode classifies reasons, for callers that handle some of them.
type ReasonCode string

// The codes.
const (
	ReasonBackend      ReasonCode = "Backend"
	ReasonArchitecture ReasonCode = "Architecture"
	ReasonWarpSize     ReasonCode = "WarpSize"
	ReasonDriver       ReasonCode = "Driver"
	// ReasonCacheUnknown: the architecture of the cache is unknown.
	ReasonCacheUnknown ReasonCode = "CacheUnknown"
	// ReasonDeviceUnknown: the architecture of the device is unknown.
	ReasonDeviceUnknown ReasonCode = "DeviceUnknown"
)

// Reason explains why a cache does not fit a device.
type Reason struct {
	Code ReasonCode `json:"code"`
	// Message names the source of the fact and the device.
	Message string `json:"message"`
}

func (r Reason) String() string { return r.Message }

// Fits returns the reasons why a device cannot use a cache, or none if it can. A cache with kernels for several kinds of device fits each
// of them. A cache of a type whose kernels are not recognized fits every device: the driver ignores entries that it cannot use.
func (c *Cache) Fits(d Device) []Reason {
	if len(c.Targets) == 0 && (c.Type == Generic || c.Type == CUDACompute) {
		return c.fitsBackend(d)
	}
	precise, vague := c.evidence()
	for _, t := range vague {
		if t.Backend == d.Backend {
			vague = nil
			break
		}
	}
	if len(vague) > 0 {
		return firstOf(against(vague, func(t Target) *Reason { return t.backend(d) }))
	}
	if len(precise) == 0 {
		return []Reason{{ReasonCacheUnknown, c.unknown(d)}}
	}
	reasons := against(precise, func(t Target) *Reason { return t.against(d) })
	if len(reasons) < len(precise) {
		return nil
	}
	return firstOf(reasons)
}

// maxReasons bounds the reasons: a cache may have hundreds of targets, none of which fits.
const maxReasons = 8

// firstOf returns the first reasons, and says how many more there are.
func firstOf(reasons []Reason) []Reason {
	more := len(reasons) - maxReasons
	if more <= 0 {
		return reasons
	}
	return append(reasons[:maxReasons:maxReasons], Reason{reasons[maxReasons].Code, fmt.Sprintf("and %d more targets do not fit", more)})
}

// evidence returns the targets that decide: those with an architecture of the most trusted source that names any, and those without an
// architecture of sources that are trusted as much or more.
func (c *Cache) evidence() (precise, vague []Target) {
	for _, source := range []Source{FromFiles, FromManifest, FromLabels} {
		for _, t := range c.Targets {
			switch {
			case t.Source != source:
			case t.Arch != "":
				precise = append(precise, t)
			default:
				vague = append(vague, t)
			}
		}
		if len(precise) > 0 {
			break
		}
	}
	// A backend that precise targets name too adds nothing.
	vague = slices.DeleteFunc(vague, func(v Target) bool {
		return slices.ContainsFunc(precise, func(p Target) bool { return p.Source == v.Source })
	})
	return precise, strongest(vague)
}

// strongest keeps the targets of the most trusted source.
func strongest(targets []Target) []Target {
	return slices.DeleteFunc(targets, func(t Target) bool { return t.Source != targets[0].Source })
}

// fitsBackend judges caches without targets: only CUDA devices can use the cache of CUDA's driver.
func (c *Cache) fitsBackend(d Device) []Reason {
	if c.Type == CUDACompute && d.Backend != CUDA {
		return []Reason{{ReasonBackend, fmt.Sprintf("the cache is one of CUDA's driver, but device %s has none", d)}}
	}
	return nil
}

func against(targets []Target, check func(Target) *Reason) []Reason {
	var reasons []Reason
	for _, t := range targets {
		if r := check(t); r != nil {
			reasons = append(reasons, *r)
		}
	}
	return reasons
}

func (c *Cache) unknown(d Device) string {
	said := "neither its files nor a manifest nor labels say"
	var words []string
	for _, t := range c.Targets[:min(len(c.Targets), maxReasons)] {
		words = append(words, t.where()+" says "+t.Backend)
	}
	if len(words) > 0 {
		said = strings.Join(words, " and ") + ", but none says"
	}
	text := fmt.Sprintf("%s for which architecture the cache is, so it is not known to fit device %s", said, d)
	for _, note := range c.Labels.Notes {
		if strings.Contains(note, ": arch ") {
			return text + ": " + note
		}
	}
	return text + ": build the image with its architecture, or allow such caches"
}

func (t Target) reason(code ReasonCode, format string, args ...any) *Reason {
	return &Reason{code, fmt.Sprintf("%s: ", t.where()) + fmt.Sprintf(format, args...)}
}

func (t Target) backend(d Device) *Reason {
	if t.Backend == d.Backend {
		return nil
	}
	return t.reason(ReasonBackend, "the kernels are for %s, but device %s is not", t.Backend, d)
}

// against returns the reason why a target's kernels do not run on a device, or nil.
func (t Target) against(d Device) *Reason {
	if r := t.backend(d); r != nil {
		return r
	}
	switch {
	case d.Arch == "":
		return t.reason(ReasonDeviceUnknown, "the kernels are for %s, but device %s does not tell its architecture: is its driver complete?",
			t, d)
	case t.Code == PTX:
		if r := t.compiles(d); r != nil {
			return r
		}
	case t.Arch != d.Arch:
		return t.reason(ReasonArchitecture, "the kernels are for %s, but device %s is another", t, d)
	}
	if t.WarpSize != 0 && d.WarpSize != 0 && t.WarpSize != d.WarpSize {
		return t.reason(ReasonWarpSize, "the kernels are for warps of %d, but those of device %s have %d", t.WarpSize, d, d.WarpSize)
	}
	return nil
}

// compiles returns the reason why the driver would not compile PTX for a device, or nil. PTX for sm_90a runs on that architecture alone,
// and PTX for sm_100f on its family (PTX ISA, "Target").
func (t Target) compiles(d Device) *Reason {
	want, have := number(t.Arch), number(d.Arch)
	switch {
	case t.Features == "a" && want != have:
		return t.reason(ReasonArchitecture, "the kernels are for %s and no other, but device %s is another", t, d)
	case t.Features == "f" && (family(want) != family(have) || want > have):
		return t.reason(ReasonArchitecture, "the kernels are for the family of %s, of which device %s is not", t, d)
	case want > have:
		return t.reason(ReasonArchitecture, "the kernels are for %s and newer, but device %s is older", t, d)
	case t.PTXVersion != 0 && d.MaxPTX != 0 && t.PTXVersion > d.MaxPTX:
		return t.reason(ReasonDriver, "the kernels are PTX %s, but driver %d of device %s compiles up to %s: update the driver",
			ptxWords(t.PTXVersion), d.Driver, d, ptxWords(d.MaxPTX))
	}
	return nil
}

// family returns a number that NVIDIA architectures of one family share: that before the last digit. sm_101 is sm_110 by its first name.
func family(number int) int {
	if number == 101 {
		return 11
	}
	return number / 10
}

func ptxWords(version int) string { return fmt.Sprintf("%d.%d", version/10, version%10) }

// number returns the number of an NVIDIA architecture.
func number(a Arch) int {
	n := 0
	for _, digit := range a {
		n = n*10 + int(digit-'0')
	}
	return n
}

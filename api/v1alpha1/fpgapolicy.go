// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/registryname"
)

// FPGAPolicy is what an administrator decides for every claim of a DeviceClass of FPGAs. Without one that allows a bitstream none is
// programmed. When several apply to one request, each must allow what it speaks of.
type FPGAPolicy struct {
	Policy `json:",inline"`

	// AllowedBitstreams are bitstreams that may be programmed: "sha256:DIGEST", "NAME" of a ClusterFPGABitstream, "NAMESPACE/NAME"
	// or "NAMESPACE/*" of FPGABitstreams.
	AllowedBitstreams []string `json:"allowedBitstreams,omitempty"`
	// AllowedRegistries are registries, or repositories with all below them, whose bitstreams may be programmed:
	// "registry.example/team".
	AllowedRegistries []string `json:"allowedRegistries,omitempty"`
	// RequireSignature refuses bitstreams unless a TrustPolicy verified their signatures. Policies with the mode Skip verify nothing.
	RequireSignature bool `json:"requireSignature,omitempty"`
	// RequireBlank refuses a region that another namespace used last, where there is no blank image to wipe it with.
	RequireBlank bool `json:"requireBlank,omitempty"`
	// AllowUnclearedMemory gives claims regions whose card's memory may hold data of another namespace's claim, as for cards without memory.
	// Unset: such a region is cleared by a blank image with spec.memoryClearTime, or refused.
	AllowUnclearedMemory bool `json:"allowUnclearedMemory,omitempty"`
	// AllowWithoutIOMMU gives claims regions whose logic can read and write all memory of the machine, since no IOMMU translates its DMA.
	// Unset: such a region is refused on nodes that program it.
	AllowWithoutIOMMU bool `json:"allowWithoutIOMMU,omitempty"`
	// AllowKeep lets claims say onRelease: Keep.
	AllowKeep bool `json:"allowKeep,omitempty"`
	// AllowedDriverParams are the driver parameters that claims may set. Unset: none.
	AllowedDriverParams []FPGAParamRule `json:"allowedDriverParams,omitempty"`
	// CoTenancy says who may hold regions of one chip at the same time: Exclusive, SameNamespace or Shared. Unset: SameNamespace. The
	// strictest of the claims that hold a chip counts.
	CoTenancy CoTenancy `json:"coTenancy,omitempty"`
	// BindAfter has pods bound to their node only after their bitstreams are there: Fetched or Loaded. It counts on nodes whose plugin
	// has fpga.bindingConditions. Unset: at once.
	BindAfter BindAfter `json:"bindAfter,omitempty"`
	// MaxTimeout is the longest timeout that a claim may ask for. Unset: 10m.
	MaxTimeout *metav1.Duration `json:"maxTimeout,omitempty"`
}

// CoTenancy says who may share a chip.
type CoTenancy string

// The forms of sharing a chip, strictest first.
const (
	// CoTenancyExclusive gives the whole chip to one claim.
	CoTenancyExclusive CoTenancy = "Exclusive"
	// CoTenancySameNamespace lets the claims of one namespace meet on a chip.
	CoTenancySameNamespace CoTenancy = "SameNamespace"
	// CoTenancyShared lets all meet. Logic of one can watch, heat and crash its neighbours.
	CoTenancyShared CoTenancy = "Shared"
)

// Rank orders the forms, the strictest first.
func (c CoTenancy) Rank() int {
	return slices.Index([]CoTenancy{CoTenancyExclusive, CoTenancySameNamespace, CoTenancyShared}, c)
}

// BindAfter says what must have been done on a node before a pod is bound to it.
type BindAfter string

// What a pod can wait for.
const (
	// BindAfterFetched waits until the bitstream's file, or the cache of kernels, is on the node.
	BindAfterFetched BindAfter = "Fetched"
	// BindAfterLoaded waits until the region is programmed.
	BindAfterLoaded BindAfter = "Loaded"
)

// Rank orders them, the empty one first, the one that asks for the most last.
func (b BindAfter) Rank() int {
	return slices.Index([]BindAfter{"", BindAfterFetched, BindAfterLoaded}, b)
}

// FPGAParamRule allows one driver parameter.
type FPGAParamRule struct {
	// Name is clockMHz, clockLowMHz, ltr or debug.
	Name string `json:"name"`
	// Min and Max bound the value. Unset: what the parameter can be at all.
	Min *int32 `json:"min,omitempty"`
	Max *int32 `json:"max,omitempty"`
	// Values are the only values allowed. Unset: all between Min and Max.
	Values []int32 `json:"values,omitempty"`
}

// Allows says why a value is not allowed, and is empty where it is.
func (r *FPGAParamRule) Allows(value int32) string {
	low, high := paramRange(r.Name)
	if r.Min != nil {
		low = *r.Min
	}
	if r.Max != nil {
		high = *r.Max
	}
	switch {
	case value < low || value > high:
		return fmt.Sprintf("must be %d to %d", low, high)
	case r.Values != nil && !slices.Contains(r.Values, value):
		return fmt.Sprintf("must be one of %v", r.Values)
	}
	return ""
}

// maxPolicyList is the longest list of a policy.
const maxPolicyList = 128

func (p *FPGAPolicy) validateFPGA(path *field.Path) field.ErrorList {
	faults := p.validate(path)
	faults = append(faults, eachOf(p.AllowedBitstreams, path.Child("allowedBitstreams"), bitstreamPatternFaults)...)
	faults = append(faults, eachOf(p.AllowedRegistries, path.Child("allowedRegistries"), registryFaults)...)
	faults = append(faults, oneOf(p.CoTenancy, path.Child("coTenancy"), CoTenancyExclusive, CoTenancySameNamespace, CoTenancyShared)...)
	faults = append(faults, oneOf(p.BindAfter, path.Child("bindAfter"), BindAfterFetched, BindAfterLoaded)...)
	faults = append(faults, timeoutFaults(p.MaxTimeout, path.Child("maxTimeout"))...)
	if p.AllowedDriverParams != nil && len(p.AllowedDriverParams) == 0 {
		faults = append(faults, emptyList(path.Child("allowedDriverParams")))
	}
	seen := map[string]bool{}
	for i := range p.AllowedDriverParams {
		rule, at := &p.AllowedDriverParams[i], path.Child("allowedDriverParams").Index(i)
		if seen[rule.Name] {
			faults = append(faults, field.Duplicate(at.Child("name"), rule.Name))
		}
		seen[rule.Name] = true
		faults = append(faults, rule.faults(at)...)
	}
	return faults
}

func (r *FPGAParamRule) faults(path *field.Path) field.ErrorList {
	if known := []string{ParamClock, ParamClockLow, ParamDebug, ParamLTR}; !slices.Contains(known, r.Name) {
		return field.ErrorList{field.NotSupported(path.Child("name"), r.Name, known)}
	}
	var faults field.ErrorList
	low, high := paramRange(r.Name)
	within := func(value int32, at *field.Path) {
		if value < low || value > high {
			faults = append(faults, field.Invalid(at, value, fmt.Sprintf("must be %d to %d", low, high)))
		}
	}
	if r.Min != nil {
		within(*r.Min, path.Child("min"))
	}
	if r.Max != nil {
		within(*r.Max, path.Child("max"))
	}
	if r.Min != nil && r.Max != nil && *r.Min > *r.Max {
		faults = append(faults, field.Invalid(path.Child("min"), *r.Min, fmt.Sprintf("must not be above max, %d", *r.Max)))
	}
	if r.Values != nil && len(r.Values) == 0 {
		faults = append(faults, emptyList(path.Child("values")))
	}
	for i, value := range r.Values {
		within(value, path.Child("values").Index(i))
	}
	return faults
}

// eachOf checks a list that must not be empty where it is set.
func eachOf(list []string, path *field.Path, check func(string, *field.Path) field.ErrorList) field.ErrorList {
	if list != nil && len(list) == 0 {
		return field.ErrorList{emptyList(path)}
	}
	var faults field.ErrorList
	if len(list) > maxPolicyList {
		faults = append(faults, field.TooMany(path, len(list), maxPolicyList))
	}
	for i, text := range list {
		faults = append(faults, check(text, path.Index(i))...)
	}
	return faults
}

func emptyList(path *field.Path) *field.Error {
	return field.Required(path, "name at least one, or leave the field out")
}

const sha256Prefix = "sha256:"

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	digestForm     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	noDigest       = sha256Prefix + strings.Repeat("0", 64)
	repositoryForm = regexp.MustCompile(
		`^[a-z0-9]+([.-][a-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
)

const maxRef = 512

// isDigest says whether a text is the digest of some content. All 0 stand for none.
func isDigest(text string) bool { return digestForm.MatchString(text) && text != noDigest }

// bitstreamPatternFaults checks an entry of allowedBitstreams.
func bitstreamPatternFaults(text string, path *field.Path) field.ErrorList {
	if strings.HasPrefix(text, sha256Prefix) {
		if !isDigest(text) {
			return field.ErrorList{field.Invalid(path, text, "must be sha256: and 64 lower-case hexadecimal digits")}
		}
		return nil
	}
	namespace, name, namespaced := strings.Cut(text, "/")
	if !namespaced {
		return objectNameFaults(text, path)
	}
	var faults field.ErrorList
	for _, detail := range validation.IsDNS1123Label(namespace) {
		faults = append(faults, field.Invalid(path, text, "the namespace "+detail))
	}
	if name == "*" {
		return faults
	}
	for _, detail := range validation.IsDNS1123Subdomain(name) {
		faults = append(faults, field.Invalid(path, text, "the name "+detail))
	}
	return faults
}

// registryFaults checks an entry of allowedRegistries.
func registryFaults(text string, path *field.Path) field.ErrorList {
	if len(text) > maxRef || !repositoryForm.MatchString(text) {
		return field.ErrorList{field.Invalid(path, text, "must be a registry with an optional repository, such as registry.example:5000/team")}
	}
	return hostFaults(text, path)
}

// hostFaults wants a first part that is a registry to everyone: "team/image" is Docker Hub's to those who pull it.
func hostFaults(repository string, path *field.Path) field.ErrorList {
	host, below, found := strings.Cut(repository, "/")
	if !registryname.Valid(registryname.Host(host)) || found && !registryname.ValidPath(below) || len(below) > registryname.MaxPath {
		return field.ErrorList{field.Invalid(path, repository, fmt.Sprintf("must be a host, with a port of 1 to 65535 if any, and a "+
			"repository of at most %d characters", registryname.MaxPath))}
	}
	if strings.ContainsAny(host, ".:") || host == "localhost" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, repository, "must name its registry by a host with a dot or a port, such as docker.io")}
}

// pinnedRefFaults checks a reference that must name a digest.
func pinnedRefFaults(ref string, path *field.Path) field.ErrorList {
	repository, digest, found := strings.Cut(ref, "@")
	switch {
	case !found || !isDigest(digest):
		return field.ErrorList{field.Invalid(path, ref,
			"must name its content: registry/repository@sha256:DIGEST; a tag may move after it was checked")}
	case len(ref) > maxRef || !strings.Contains(repository, "/") || !repositoryForm.MatchString(repository):
		return field.ErrorList{field.Invalid(path, ref, "must name a registry and a repository before the digest, and no tag")}
	}
	return hostFaults(repository, path)
}

func objectNameFaults(name string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, detail := range validation.IsDNS1123Subdomain(name) {
		faults = append(faults, field.Invalid(path, name, detail))
	}
	return faults
}

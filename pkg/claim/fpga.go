// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The fields of an FPGAConfig that have a source.
const (
	FieldInterfaceID    = "interfaceID"
	FieldBitstream      = "bitstream"
	FieldProgram        = "program"
	FieldDriverParams   = "driverParams"
	FieldResetBeforeUse = "resetBeforeUse"
	FieldFPGARelease    = "onRelease"
	FieldTimeout        = "timeout"
	FieldCoTenancy      = "policy.coTenancy"
)

// FPGAEffective is the effective configuration of an FPGA's region.
type FPGAEffective struct {
	// InterfaceID is canonical; empty: any.
	InterfaceID string `json:"interfaceID,omitempty"`
	// Bitstream is nil where the region is used as it is.
	Bitstream      *v1alpha1.BitstreamSource `json:"bitstream,omitempty"`
	Program        v1alpha1.ProgramMode      `json:"program"`
	DriverParams   []v1alpha1.DriverParam    `json:"driverParams,omitempty"`
	ResetBeforeUse bool                      `json:"resetBeforeUse"`
	OnRelease      v1alpha1.FPGARelease      `json:"onRelease"`
	Timeout        time.Duration             `json:"timeout"`
	CoTenancy      v1alpha1.CoTenancy        `json:"coTenancy"`
	// Policies are those of the classes. Each must allow what it speaks of, and one at least must allow a bitstream.
	Policies []FPGARule `json:"policies,omitempty"`
	// Live says that Policies also has those of the class as it is now, whose Source names it.
	Live bool `json:"live,omitempty"`
}

// FPGARule is the policy of one class.
type FPGARule struct {
	Policy v1alpha1.FPGAPolicy `json:"policy"`
	Source Source              `json:"source"`
}

// allows reports whether the policies have a permission. One of each side is enough: policies are the administrator's, but a policy that
// only the allocation has may be anybody's.
func (f *FPGAEffective) allows(has func(*v1alpha1.FPGAPolicy) bool) bool {
	for _, side := range f.sides() {
		if !slices.ContainsFunc(side, func(p FPGARule) bool { return has(&p.Policy) }) {
			return false
		}
	}
	return true
}

// AllowsUnclearedMemory reports whether a class accepts memory with another tenant's data.
func (f *FPGAEffective) AllowsUnclearedMemory() bool {
	return f.allows(func(p *v1alpha1.FPGAPolicy) bool { return p.AllowUnclearedMemory })
}

// AllowsWithoutIOMMU reports whether a class accepts logic that can reach all memory of the machine.
func (f *FPGAEffective) AllowsWithoutIOMMU() bool {
	return f.allows(func(p *v1alpha1.FPGAPolicy) bool { return p.AllowWithoutIOMMU })
}

// NamesDigests says whether a policy allows bitstreams by their digests.
func (f *FPGAEffective) NamesDigests() bool {
	return slices.ContainsFunc(f.Policies, func(p FPGARule) bool { return p.namesDigests() })
}

func (r *FPGARule) namesDigests() bool {
	return slices.ContainsFunc(r.Policy.AllowedBitstreams, func(s string) bool { return strings.HasPrefix(s, "sha256:") })
}

// Path is that of a field of the policy in the class.
func (r *FPGARule) Path(name ...string) *field.Path {
	return r.Source.parameters().Child("policy", name...)
}

// builtInFPGA is what holds where neither class nor claim says anything.
func builtInFPGA(e *Effective, source Source) {
	var config v1alpha1.FPGAConfig
	config.Default()
	e.FPGA = &FPGAEffective{
		Program: config.Program, ResetBeforeUse: *config.ResetBeforeUse, OnRelease: config.OnRelease, Timeout: config.Timeout.Duration,
		CoTenancy: v1alpha1.CoTenancySameNamespace,
	}
	for _, name := range []string{
		FieldInterfaceID, FieldBitstream, FieldProgram, FieldDriverParams, FieldResetBeforeUse, FieldFPGARelease, FieldTimeout, FieldCoTenancy,
	} {
		e.Sources[name] = source
	}
}

// mergeFPGA lays a configuration over what is there. Two of the same origin that say different things are a fault: neither is the
// stronger one, and a region can hold one bitstream only.
func (e *Effective) mergeFPGA(config *v1alpha1.FPGAConfig, source Source) field.ErrorList {
	var faults field.ErrorList
	f := e.FPGA
	if config.InterfaceID != "" {
		id, _ := v1alpha1.CanonicalID(config.InterfaceID) // validated already
		faults = append(faults, override(e, &f.InterfaceID, id, FieldInterfaceID, source)...)
	}
	if config.Bitstream != nil {
		bitstream := *config.Bitstream
		if bitstream.Name != "" && bitstream.Kind == "" {
			bitstream.Kind = v1alpha1.KindFPGABitstream
		}
		faults = append(faults, override(e, &f.Bitstream, &bitstream, FieldBitstream, source)...)
	}
	if config.Program != "" {
		faults = append(faults, override(e, &f.Program, config.Program, FieldProgram, source)...)
	}
	if params := config.DriverParams.List(); len(params) > 0 {
		faults = append(faults, override(e, &f.DriverParams, params, FieldDriverParams, source)...)
	}
	if config.ResetBeforeUse != nil {
		faults = append(faults, override(e, &f.ResetBeforeUse, *config.ResetBeforeUse, FieldResetBeforeUse, source)...)
	}
	if config.OnRelease != "" {
		faults = append(faults, override(e, &f.OnRelease, config.OnRelease, FieldFPGARelease, source)...)
	}
	if config.Timeout != nil {
		faults = append(faults, override(e, &f.Timeout, config.Timeout.Duration, FieldTimeout, source)...)
	}
	return faults
}

func (e *Effective) mergeFPGAPolicy(config *v1alpha1.FPGAConfig, source Source) {
	if config.Policy != nil {
		e.narrow(config.Policy.AllowedNamespaces, source)
		e.mergeCoTenancy(config.Policy.CoTenancy, source)
		e.FPGA.Policies = append(e.FPGA.Policies, FPGARule{Policy: *config.Policy, Source: source})
	}
}

// restrictFPGA takes the stricter co-tenancy, and keeps both lists of rules: each has to allow what the claim asks for.
func (e *Effective) restrictFPGA(other *Effective) {
	e.narrowTo(other)
	if other.FPGA.CoTenancy.Rank() < e.FPGA.CoTenancy.Rank() {
		e.FPGA.CoTenancy = other.FPGA.CoTenancy
		e.Sources[FieldCoTenancy] = other.Sources[FieldCoTenancy]
	}
	e.FPGA.Policies = append(e.FPGA.Policies, other.FPGA.Policies...)
	e.FPGA.Live = true
}

// sides returns the rules that the allocation recorded and, if they are known, those of the class as it is now. Each side must allow what
// the claim asks for by itself, so that a rule that only the allocation has grants nothing.
func (f *FPGAEffective) sides() [][]FPGARule {
	var recorded, live []FPGARule
	for _, rule := range f.Policies {
		if rule.Source.Class == "" {
			recorded = append(recorded, rule)
		} else {
			live = append(live, rule)
		}
	}
	if f.Live {
		return [][]FPGARule{recorded, live}
	}
	return [][]FPGARule{recorded}
}

// firstFaults returns the faults of the first side that has any: mostly both sides are the same rules.
func (f *FPGAEffective) firstFaults(of func(rules []FPGARule) field.ErrorList) field.ErrorList {
	for _, rules := range f.sides() {
		if faults := of(rules); len(faults) > 0 {
			return faults
		}
	}
	return nil
}

// override sets a field, or says that another entry of the same origin set it otherwise.
func override[T any](e *Effective, at *T, value T, name string, source Source) field.ErrorList {
	before := e.Sources[name]
	if before.Origin == source.Origin && !reflect.DeepEqual(*at, value) {
		return field.ErrorList{field.Forbidden(source.parameters().Child(name),
			fmt.Sprintf("%s says otherwise for the same request: keep one of the two", configPath(before.Index)))}
	}
	*at = value
	e.Sources[name] = source
	return nil
}

// mergeCoTenancy lets the first class choose, and any later one only be stricter.
func (e *Effective) mergeCoTenancy(value v1alpha1.CoTenancy, source Source) {
	chosen := e.Sources[FieldCoTenancy].Origin != OriginBuiltIn
	if value == "" || chosen && value.Rank() >= e.FPGA.CoTenancy.Rank() {
		return
	}
	e.FPGA.CoTenancy = value
	e.Sources[FieldCoTenancy] = source
}

// fpgaFaults refuses what the classes' policies do not allow and the claim itself tells. Which bitstreams it may load is known only with
// the bitstream: see Allows.
func fpgaFaults(results []Result) field.ErrorList {
	var faults field.ErrorList
	for i := range results {
		r := &results[i]
		if r.Config.FPGA == nil || r.AdminAccess {
			continue
		}
		faults = append(faults, r.Config.FPGA.firstFaults(r.paramFaults)...)
		faults = append(faults, r.timeoutFaults()...)
		faults = append(faults, r.keepFaults()...)
	}
	return faults
}

// At is the path of a field of the configuration that set it.
func (r *Result) At(name string) *field.Path {
	if source := r.Config.Sources[name]; source.Index >= 0 {
		return source.parameters().Child(name)
	}
	return allocationPath().Child("devices", "config").Key("built-in").Child(name)
}

func (r *Result) paramFaults(rules []FPGARule) field.ErrorList {
	var faults field.ErrorList
	for _, param := range r.Config.FPGA.DriverParams {
		path := r.At(FieldDriverParams).Child(param.Name)
		spoken := false
		for i := range rules {
			p := &rules[i]
			if p.Policy.AllowedDriverParams == nil {
				continue
			}
			spoken = true
			at := slices.IndexFunc(p.Policy.AllowedDriverParams, func(rule v1alpha1.FPGAParamRule) bool { return rule.Name == param.Name })
			if at < 0 {
				faults = append(faults, field.Forbidden(path, fmt.Sprintf("%s of the class of request %s does not list it",
					p.Path("allowedDriverParams"), r.Request)))
			} else if why := p.Policy.AllowedDriverParams[at].Allows(param.Value); why != "" {
				faults = append(faults, field.Invalid(path, param.Value, fmt.Sprintf("%s, says %s of the class of request %s",
					why, p.Path("allowedDriverParams").Index(at), r.Request)))
			}
		}
		if !spoken {
			faults = append(faults, field.Forbidden(path, fmt.Sprintf(
				"no class of request %s allows driver parameters: ask an administrator to list it in policy.allowedDriverParams", r.Request)))
		}
	}
	return faults
}

func (r *Result) timeoutFaults() field.ErrorList {
	var faults field.ErrorList
	f := r.Config.FPGA
	for i := range f.Policies {
		p := &f.Policies[i]
		if limit := p.Policy.MaxTimeout; limit != nil && f.Timeout > limit.Duration {
			if r.Config.Sources[FieldTimeout].Origin == OriginBuiltIn {
				f.Timeout = limit.Duration
				continue
			}
			faults = append(faults, field.Invalid(r.At(FieldTimeout), f.Timeout.String(), fmt.Sprintf(
				"must be at most %s, says %s of the class of request %s", limit.Duration, p.Path("maxTimeout"), r.Request)))
		}
	}
	return faults
}

func (r *Result) keepFaults() field.ErrorList {
	f := r.Config.FPGA
	if f.OnRelease != v1alpha1.FPGAReleaseKeep || f.allows(func(p *v1alpha1.FPGAPolicy) bool { return p.AllowKeep }) {
		return nil
	}
	return field.ErrorList{field.Forbidden(r.At(FieldFPGARelease),
		fmt.Sprintf("no class of request %s has policy.allowKeep: use Reset or Blank", r.Request))}
}

// Bitstream is what is known of a bitstream when a claim asks to load it.
type Bitstream struct {
	// Object is the object's kind, Namespace and Name its own; all empty for a reference by digest.
	Kind, Namespace, Name string
	// Repository is where it is from, registry and path without tag and digest. Empty for a file on the host.
	Repository string
	// Digests are those by which a policy may list it: of the artifact, of its manifest, and of its file if the file itself states which
	// regions it is for.
	Digests []string
	// Raw says that the file does not state which regions it is for. Only the manifest does, so Digests lacks the file's: whoever can write
	// a manifest could otherwise have a listed file loaded into a region that it is not for.
	Raw bool
	// Namespaces are those that a ClusterFPGABitstream is for.
	Namespaces []string
	// Vouched says that a TrustPolicy vouches for it; VouchedDetail why not.
	Vouched       bool
	VouchedDetail string
}

// String names it for people.
func (b *Bitstream) String() string {
	switch {
	case b.Name == "":
		return b.Repository + "@" + strings.Join(b.Digests[:min(1, len(b.Digests))], "")
	case b.Namespace == "":
		return b.Kind + " " + b.Name
	}
	return b.Kind + " " + b.Namespace + "/" + b.Name
}

// Allows says why a claim of a namespace may not load a bitstream, nothing where it may. Nobody may unless a class says so.
func (r *Result) Allows(namespace string, b *Bitstream) field.ErrorList {
	path := r.At(FieldBitstream)
	if b.Kind == v1alpha1.KindClusterFPGABitstream && !slices.Contains(b.Namespaces, "*") && !slices.Contains(b.Namespaces, namespace) {
		return field.ErrorList{field.Forbidden(path.Child("name"), fmt.Sprintf(
			"%s is not for namespace %s: ask an administrator to add it to spec.namespaces", b, namespace))}
	}
	return r.Config.FPGA.firstFaults(func(rules []FPGARule) field.ErrorList { return r.allowFaults(rules, b) })
}

func (r *Result) allowFaults(rules []FPGARule, b *Bitstream) field.ErrorList {
	path := r.At(FieldBitstream)
	var faults field.ErrorList
	spoken := false
	for i := range rules {
		p := &rules[i]
		speaks := p.Policy.AllowedBitstreams != nil || p.Policy.AllowedRegistries != nil
		spoken = spoken || speaks
		if speaks && !p.lists(b) {
			faults = append(faults, field.Forbidden(path, r.notListed(p, b)))
		}
		if p.Policy.RequireSignature && !b.Vouched {
			faults = append(faults, field.Forbidden(path, fmt.Sprintf("%s asks for a signature that a TrustPolicy vouches for, and %s has none: %s",
				p.Path("requireSignature"), b, b.VouchedDetail)))
		}
	}
	if !spoken {
		faults = append(faults, field.Forbidden(path, fmt.Sprintf("no class of request %s allows any bitstream, so nothing is programmed: "+
			"use a class whose policy lists it in allowedBitstreams or allowedRegistries", r.Request)))
	}
	return faults
}

// notListed says that a rule of the request's class does not list a bitstream.
func (r *Result) notListed(p *FPGARule, b *Bitstream) string {
	detail := fmt.Sprintf("%s is in neither allowedBitstreams nor allowedRegistries of %s, the class of request %s", b, p.Path(), r.Request)
	if b.Raw && p.namesDigests() {
		detail += "; it is a raw image, which counts by the digest of its manifest and not of its file"
	}
	return detail
}

// lists says whether a policy names a bitstream, by object, digest or origin.
func (r *FPGARule) lists(b *Bitstream) bool {
	for _, pattern := range r.Policy.AllowedBitstreams {
		namespace, name, namespaced := strings.Cut(pattern, "/")
		switch {
		case strings.HasPrefix(pattern, "sha256:"):
			if slices.Contains(b.Digests, pattern) {
				return true
			}
		case b.Name == "":
		case namespaced && b.Kind == v1alpha1.KindFPGABitstream && namespace == b.Namespace && (name == "*" || name == b.Name),
			!namespaced && b.Kind == v1alpha1.KindClusterFPGABitstream && pattern == b.Name:
			return true
		}
	}
	return b.Repository != "" && slices.ContainsFunc(r.Policy.AllowedRegistries, func(registry string) bool {
		registry = registryname.Repository(registry)
		return b.Repository == registry || strings.HasPrefix(b.Repository, registry+"/")
	})
}

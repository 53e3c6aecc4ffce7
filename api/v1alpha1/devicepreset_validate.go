// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/api/mountpath"
)

// What a preset may have at most. The CRDs say the same in markers, and a test compares the two.
const (
	maxPriority       = 1_000_000
	maxPresetEnv      = 64
	maxPresetLists    = 8 // envFrom, libraries, tools and hooks
	maxPresetMounts   = 32
	maxPresetNodes    = 32
	maxPresetLinks    = 32
	maxPresetDirs     = 16
	maxPresetNames    = 64
	maxPresetClasses  = 16
	maxPresetCount    = 128
	maxPresetCEL      = 4096
	maxPresetVariable = 256
	maxPresetValue    = 4096
	maxSeparator      = 8
	maxPrefix         = 128
	maxHostPath       = 1024
	maxSizeLimit      = 32
	maxFileName       = 128
	maxLinkTarget     = 256
)

// The forms of what is neither a path nor a name of Kubernetes.
var (
	presetFile = regexp.MustCompile(`^[A-Za-z0-9_*?][A-Za-z0-9_.*?+-]*$`)
	presetNode = regexp.MustCompile(`^/dev(/[A-Za-z0-9_:,+=@-][A-Za-z0-9._:,+=@-]*)+$`)
)

// The variables that a preset can only append to.
const (
	EnvPath        = "PATH"
	EnvLibraryPath = "LD_LIBRARY_PATH"
)

// EffectiveMode returns the mode that counts.
func (e *PresetEnv) EffectiveMode() EnvMode { return cmp.Or(e.Mode, EnvSet) }

// EffectiveMode returns the mode that counts.
func (e *PresetEnvFrom) EffectiveMode() EnvMode { return cmp.Or(e.Mode, EnvSet) }

// Validate reports every fault of the preset's spec below path, those that the CRD's own rules find included, so that a file can be
// judged without a cluster. Whether CEL compiles is not judged here.
func (s *DevicePresetSpec) Validate(path *field.Path) field.ErrorList {
	return s.validate(path, false)
}

// Validate is as that of a DevicePresetSpec.
func (s *ClusterDevicePresetSpec) Validate(path *field.Path) field.ErrorList {
	faults := s.validate(path, true)
	faults = append(faults, validateSelector(s.NamespaceSelector, path.Child("namespaceSelector"))...)
	if s.Driver != nil {
		faults = append(faults, s.Driver.validate(path.Child("driver"))...)
	}
	path = path.Child("deviceNodes")
	faults = append(faults, atMost(len(s.DeviceNodes), maxPresetNodes, path)...)
	seen := map[string]bool{}
	for i, n := range s.DeviceNodes {
		at := path.Index(i).Child("path")
		if seen[n.Path] {
			faults = append(faults, field.Duplicate(at, n.Path))
		}
		seen[n.Path] = true
		faults = append(faults, noLonger(n.Path, mountpath.MaxLength, at)...)
		if !presetNode.MatchString(n.Path) {
			faults = append(faults, field.Invalid(at, n.Path, "must be a clean path below /dev of letters, digits and any of . _ : , + = @ -"))
		}
	}
	return faults
}

func (r *PresetRules) validate(path *field.Path, cluster bool) field.ErrorList {
	var faults field.ErrorList
	if r.DeviceSelector == nil && r.PodSelector == nil {
		faults = append(faults, field.Required(path, "select something: set deviceSelector, podSelector or both"))
	}
	if r.DeviceSelector != nil {
		faults = append(faults, r.DeviceSelector.validate(path.Child("deviceSelector"))...)
	}
	faults = append(faults, validateSelector(r.PodSelector, path.Child("podSelector"))...)
	if r.Priority < -maxPriority || r.Priority > maxPriority {
		faults = append(faults, field.Invalid(path.Child("priority"), r.Priority, fmt.Sprintf("must be from -%d to %[1]d", maxPriority)))
	}
	faults = append(faults, r.validateCounts(path)...)
	faults = append(faults, r.validateSize(path)...)
	for i := range r.Env {
		faults = append(faults, r.Env[i].Validate(path.Child("env").Index(i), cluster)...)
	}
	for i := range r.EnvFrom {
		faults = append(faults, r.EnvFrom[i].validate(path.Child("envFrom").Index(i))...)
	}
	faults = append(faults, validateMounts(r.Mounts, path.Child("mounts"), cluster)...)
	for i := range r.Libraries {
		faults = append(faults, r.Libraries[i].validate(path.Child("libraries").Index(i))...)
	}
	for i := range r.Tools {
		faults = append(faults, r.Tools[i].validate(path.Child("tools").Index(i))...)
	}
	for i := range r.Hooks {
		at := path.Child("hooks").Index(i)
		faults = append(faults, r.Hooks[i].validate(at, cluster)...)
		faults = append(faults, r.linksInMounts(r.Hooks[i].Links, at.Child("links"))...)
	}
	return faults
}

// linksInMounts refuses links in the preset's own mounts: what is in a mount is the node's, and the hook changes nothing there.
func (r *PresetRules) linksInMounts(links []PresetLink, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i, link := range links {
		in := func(m PresetMount) bool { return mountpath.Within(link.Path, m.ContainerPath) }
		if m := slices.IndexFunc(r.Mounts, in); m >= 0 {
			faults = append(faults, field.Invalid(path.Index(i).Child("path"), link.Path,
				"must not be in a mount of the preset, "+r.Mounts[m].ContainerPath+": no link can be made there"))
		}
	}
	return faults
}

func (r *PresetRules) validateCounts(path *field.Path) field.ErrorList {
	return slices.Concat(
		atMost(len(r.Env), maxPresetEnv, path.Child("env")),
		atMost(len(r.EnvFrom), maxPresetLists, path.Child("envFrom")),
		atMost(len(r.Mounts), maxPresetMounts, path.Child("mounts")),
		atMost(len(r.Libraries), maxPresetLists, path.Child("libraries")),
		atMost(len(r.Tools), maxPresetLists, path.Child("tools")),
		atMost(len(r.Hooks), maxPresetLists, path.Child("hooks")),
	)
}

func atMost(have, limit int, path *field.Path) field.ErrorList {
	if have <= limit {
		return nil
	}
	return field.ErrorList{field.TooMany(path, have, limit)}
}

// noLonger counts characters, as the API server does.
func noLonger(text string, limit int, path *field.Path) field.ErrorList {
	if utf8.RuneCountInString(text) <= limit {
		return nil
	}
	return field.ErrorList{field.TooLong(path, "", limit)}
}

// validateSet wants each text once.
func validateSet(texts []string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i, text := range texts {
		if slices.Contains(texts[:i], text) {
			faults = append(faults, field.Duplicate(path.Index(i), text))
		}
	}
	return faults
}

// validateDirectories wants a set of clean paths.
func validateDirectories(dirs []string, limit int, path *field.Path) field.ErrorList {
	faults := append(atMost(len(dirs), maxPresetDirs, path), validateSet(dirs, path)...)
	for i, dir := range dirs {
		faults = append(faults, validateClean(dir, path.Index(i))...)
		faults = append(faults, noLonger(dir, limit, path.Index(i))...)
	}
	return faults
}

func (s *PresetDeviceSelector) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if len(s.DeviceClassNames) == 0 && s.CEL == "" {
		if s.Absent == nil {
			faults = append(faults, field.Required(path, "set deviceClassNames, cel or absent"))
		}
		if s.MinCount != nil {
			faults = append(faults, field.Invalid(path.Child("minCount"), *s.MinCount,
				"counts what deviceClassNames or cel selects: set one of them"))
		}
	}
	if s.MinCount != nil && (*s.MinCount < 1 || *s.MinCount > maxPresetCount) {
		faults = append(faults, field.Invalid(path.Child("minCount"), *s.MinCount, fmt.Sprintf("must be from 1 to %d", maxPresetCount)))
	}
	faults = append(faults, noLonger(s.CEL, maxPresetCEL, path.Child("cel"))...)
	faults = append(faults, validateClasses(s.DeviceClassNames, path.Child("deviceClassNames"))...)
	if a := s.Absent; a != nil {
		path = path.Child("absent")
		if len(a.DeviceClassNames) == 0 && a.CEL == "" {
			faults = append(faults, field.Required(path, "set deviceClassNames, cel or both"))
		}
		faults = append(faults, validateClasses(a.DeviceClassNames, path.Child("deviceClassNames"))...)
		faults = append(faults, noLonger(a.CEL, maxPresetCEL, path.Child("cel"))...)
	}
	return faults
}

func validateClasses(names []string, path *field.Path) field.ErrorList {
	faults := append(atMost(len(names), maxPresetClasses, path), validateSet(names, path)...)
	for i, name := range names {
		faults = append(faults, objectNameFaults(name, path.Index(i))...)
	}
	return faults
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

// Validate reports every fault of the variable below path. A ClusterDevicePreset may set more than a DevicePreset.
func (e *PresetEnv) Validate(path *field.Path, cluster bool) field.ErrorList {
	faults := append(validateEnvName(e.Name, maxPresetVariable, path.Child("name")), reservedFaults(e.Name, cluster, path.Child("name"))...)
	if (e.Value == nil) == (e.ValueFrom == nil) {
		faults = append(faults, field.Required(path, "set exactly one of value and valueFrom"))
	}
	if e.Value != nil {
		faults = append(faults, validateText(*e.Value, maxPresetValue, path.Child("value"))...)
	}
	if e.ValueFrom != nil {
		ref := path.Child("valueFrom", "configMapKeyRef")
		faults = append(faults, objectNameFaults(e.ValueFrom.ConfigMapKeyRef.Name, ref.Child("name"))...)
		for _, detail := range validation.IsConfigMapKey(e.ValueFrom.ConfigMapKeyRef.Key) {
			faults = append(faults, field.Invalid(ref.Child("key"), e.ValueFrom.ConfigMapKeyRef.Key, detail))
		}
	}
	mode := e.EffectiveMode()
	if modes := []EnvMode{EnvSet, EnvDefault, EnvPrepend, EnvAppend}; !slices.Contains(modes, mode) {
		return append(faults, field.NotSupported(path.Child("mode"), mode, modes))
	}
	if e.Separator != nil {
		faults = append(faults, validateText(*e.Separator, maxSeparator, path.Child("separator"))...)
		if mode != EnvPrepend && mode != EnvAppend {
			faults = append(faults, field.Forbidden(path.Child("separator"), "is for mode prepend and append"))
		}
	}
	if e.Name == EnvPath || e.Name == EnvLibraryPath {
		faults = append(faults, e.validateSearchPath(path)...)
	}
	return faults
}

// validateSearchPath is for the variables that are not set.
func (e *PresetEnv) validateSearchPath(path *field.Path) field.ErrorList {
	if e.EffectiveMode() != EnvAppend || e.Value == nil || e.Separator != nil {
		return field.ErrorList{field.Forbidden(path, e.Name+
			" takes only mode append, with a value and a colon between directories: another would hide what the image sets")}
	}
	var faults field.ErrorList
	for dir := range strings.SplitSeq(*e.Value, ":") {
		faults = append(faults, validateClean(dir, path.Child("value"))...)
		if e.Name == EnvLibraryPath {
			faults = append(faults, loaderFaults(dir, path.Child("value"))...)
		}
	}
	return faults
}

// loaderFaults is about a directory that the container's loader searches.
func loaderFaults(dir string, path *field.Path) field.ErrorList {
	if err := hooktext.CheckLoaderDirectory(dir); err != nil {
		return field.ErrorList{field.Invalid(path, dir, err.Error())}
	}
	return nil
}

// validateText wants what can stand in a variable of a CDI spec, which the runtime reads as YAML.
func validateText(text string, limit int, path *field.Path) field.ErrorList {
	faults := noLonger(text, limit, path)
	if strings.ContainsFunc(strings.NewReplacer("\n", "", "\t", "").Replace(text), mountpath.Unprintable) {
		faults = append(faults, field.Invalid(path, text, "must have printable characters, tabs and line feeds only"))
	}
	return faults
}

func (e *PresetEnvFrom) validate(path *field.Path) field.ErrorList {
	faults := objectNameFaults(e.ConfigMapRef.Name, path.Child("configMapRef", "name"))
	if e.Prefix != "" {
		faults = append(faults, validateEnvName(e.Prefix, maxPrefix, path.Child("prefix"))...)
	}
	if modes := []EnvMode{EnvSet, EnvDefault}; !slices.Contains(modes, e.EffectiveMode()) {
		faults = append(faults, field.NotSupported(path.Child("mode"), e.Mode, modes))
	}
	return faults
}

func validateEnvName(name string, limit int, path *field.Path) field.ErrorList {
	faults := noLonger(name, limit, path)
	for _, detail := range validation.IsCIdentifier(name) {
		faults = append(faults, field.Invalid(path, name, detail))
	}
	return faults
}

func validateMounts(mounts []PresetMount, path *field.Path, cluster bool) field.ErrorList {
	var faults field.ErrorList
	seen := map[string]bool{}
	for i := range mounts {
		m, at := &mounts[i], path.Index(i)
		if seen[m.ContainerPath] {
			faults = append(faults, field.Duplicate(at.Child("containerPath"), m.ContainerPath))
		}
		seen[m.ContainerPath] = true
		faults = append(faults, m.validate(at, cluster)...)
	}
	return faults
}

func (m *PresetMount) validate(path *field.Path, cluster bool) field.ErrorList {
	faults := validateContainerPath(m.ContainerPath, path.Child("containerPath"), cluster)
	if (m.HostPath == "") == (m.Scratch == nil) {
		return append(faults, field.Required(path, "set exactly one of hostPath and scratch"))
	}
	if m.Scratch != nil {
		if m.ReadOnly != nil || m.Optional || m.Recursive || m.Propagation != "" {
			faults = append(faults, field.Forbidden(path,
				"a scratch directory is empty, writable and private: readOnly, optional, recursive and propagation are for a hostPath"))
		}
		return append(faults, m.Scratch.validate(path.Child("scratch"))...)
	}
	faults = append(faults, validateClean(m.HostPath, path.Child("hostPath"))...)
	faults = append(faults, noLonger(m.HostPath, maxHostPath, path.Child("hostPath"))...)
	at := path.Child("propagation")
	switch m.Propagation {
	case "", PropagationNone:
	case PropagationHostToContainer:
		if !cluster {
			faults = append(faults, field.Forbidden(at, "only a ClusterDevicePreset may propagate mounts"))
		}
	default:
		known := []MountPropagation{PropagationNone, PropagationHostToContainer}
		faults = append(faults, field.NotSupported(at, m.Propagation, known))
	}
	return faults
}

// validateContainerPath keeps a namespaced preset from what the runtime, the loader and our hook rely on. The administrator's may go
// anywhere but where the runtime itself refuses, and where Fettle mounts what its own links lead to.
func validateContainerPath(dir string, path *field.Path, cluster bool) field.ErrorList {
	if faults := append(validateClean(dir, path), noLonger(dir, mountpath.MaxLength, path)...); len(faults) > 0 {
		return faults
	}
	trees, instead := mountpath.ReservedTrees(), ": use a directory such as /mnt/data"
	if cluster {
		trees, instead = mountpath.ClosedTrees(), ""
	}
	for _, tree := range trees {
		if mountpath.Overlap(dir, tree) {
			return field.ErrorList{field.Invalid(path, dir, "must not cover or lie in "+tree+instead)}
		}
	}
	return nil
}

func (s *PresetScratch) validate(path *field.Path) field.ErrorList {
	faults := noLonger(s.SizeLimit, maxSizeLimit, path.Child("sizeLimit"))
	if err := checkExponent(s.SizeLimit); err != nil {
		return append(faults, field.Invalid(path.Child("sizeLimit"), s.SizeLimit, err.Error()))
	}
	size, err := resource.ParseQuantity(s.SizeLimit)
	if err != nil || size.Sign() <= 0 || size.CmpInt64(math.MaxInt64) > 0 { // the value of a larger one is 0
		faults = append(faults, field.Invalid(path.Child("sizeLimit"), s.SizeLimit, "must be a quantity above 0 and below 8Ei, such as 512Mi"))
	}
	return append(faults, oneOf(s.Medium, path.Child("medium"), ScratchMemory)...)
}

func (f *PresetFiles) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if len(f.Names) == 0 {
		faults = append(faults, field.Required(path.Child("names"), "name at least one file, such as libcuda.so.*"))
	}
	at := path.Child("names")
	faults = append(faults, atMost(len(f.Names), maxPresetNames, at)...)
	faults = append(faults, validateSet(f.Names, at)...)
	for i, name := range f.Names {
		if !presetFile.MatchString(name) || len(name) > maxFileName {
			faults = append(faults, field.Invalid(at.Index(i), name,
				"must be a file name of at most 128 letters, digits and any of _ . + - * ?, with no directory"))
		}
	}
	faults = append(faults, validateRoot(f.Root, path.Child("root"))...)
	return append(faults, validateDirectories(f.Directories, maxHostPath, path.Child("directories"))...)
}

// validateRoot wants where a driver is installed, which may be the root itself.
func validateRoot(root string, path *field.Path) field.ErrorList {
	if root == "" || root == "/" {
		return nil
	}
	return append(validateClean(root, path), noLonger(root, maxHostPath, path)...)
}

func (d *PresetDriver) validate(path *field.Path) field.ErrorList {
	faults := validateRoot(d.Root, path.Child("root"))
	if known := []DriverVendor{DriverNVIDIA}; !slices.Contains(known, d.Vendor) {
		faults = append(faults, field.NotSupported(path.Child("vendor"), d.Vendor, known))
	}
	return faults
}

func (h *PresetHook) validate(path *field.Path, cluster bool) field.ErrorList {
	known := []HookName{HookLdconfig, HookLinks}
	if !slices.Contains(known, h.Name) {
		return field.ErrorList{field.NotSupported(path.Child("name"), h.Name, known)}
	}
	var faults field.ErrorList
	if (h.Name == HookLdconfig) != (len(h.Directories) > 0) {
		faults = append(faults, field.Required(path.Child("directories"), "are what ldconfig needs, and only that"))
	}
	if (h.Name == HookLinks) != (len(h.Links) > 0) {
		faults = append(faults, field.Required(path.Child("links"), "are what the hook links needs, and only that"))
	}
	faults = append(faults, validateDirectories(h.Directories, mountpath.MaxLength, path.Child("directories"))...)
	for i, dir := range h.Directories {
		faults = append(faults, loaderFaults(dir, path.Child("directories").Index(i))...)
	}
	faults = append(faults, atMost(len(h.Links), maxPresetLinks, path.Child("links"))...)
	seen := map[string]bool{}
	for i, link := range h.Links {
		at := path.Child("links").Index(i)
		if seen[link.Path] {
			faults = append(faults, field.Duplicate(at.Child("path"), link.Path))
		}
		seen[link.Path] = true
		faults = append(faults, validateContainerPath(link.Path, at.Child("path"), cluster)...)
		faults = append(faults, noLonger(link.Target, maxLinkTarget, at.Child("target"))...)
		if link.Target == "" || strings.ContainsFunc(link.Target, mountpath.Unprintable) {
			faults = append(faults, field.Invalid(at.Child("target"), link.Target, "must be a path of printable characters"))
		} else if err := hooktext.CheckLinkTarget(link.Target); err != nil {
			faults = append(faults, field.Invalid(at.Child("target"), link.Target, err.Error()))
		}
	}
	return faults
}

// validateClean wants an absolute, clean path below the root.
func validateClean(name string, at *field.Path) field.ErrorList {
	switch {
	case !strings.HasPrefix(name, "/"):
		return field.ErrorList{field.Invalid(at, name, "must be absolute: start it with /")}
	case path.Clean(name) != name:
		return field.ErrorList{field.Invalid(at, name, "must be clean: no //, no . or .. and no / at the end; use "+path.Clean(name))}
	case name == "/":
		return field.ErrorList{field.Invalid(at, name, "must not be the root itself: name what is needed of it")}
	case strings.ContainsFunc(name, mountpath.Unprintable):
		return field.ErrorList{field.Invalid(at, name, "must have printable characters only")}
	}
	return nil
}

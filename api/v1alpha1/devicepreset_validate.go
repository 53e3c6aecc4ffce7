// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The variables that a preset can only append to.
const (
	EnvPath        = "PATH"
	EnvLibraryPath = "LD_LIBRARY_PATH"
)

// EffectiveMode returns the mode that counts.
func (e *PresetEnv) EffectiveMode() EnvMode { return modeOrSet(e.Mode) }

// EffectiveMode returns the mode that counts.
func (e *PresetEnvFrom) EffectiveMode() EnvMode { return modeOrSet(e.Mode) }

// Validate reports every fault of the preset's spec below path, those that the CRD's own rules find included, so that a file can be
// judged without a cluster. Whether CEL compiles is not judged here.
func (s *DevicePresetSpec) Validate(path *field.Path) field.ErrorList {
	return s.validate(path, false)
}

// Validate is as that of a DevicePresetSpec.
func (s *ClusterDevicePresetSpec) Validate(path *field.Path) field.ErrorList {
	faults := s.validate(path, true)
	faults = append(faults, validateSelector(s.NamespaceSelector, path.Child("namespaceSelector"))...)
	seen := map[string]bool{}
	for i, n := range s.DeviceNodes {
		at := path.Child("deviceNodes").Index(i).Child("path")
		if seen[n.Path] {
			faults = append(faults, field.Duplicate(at, n.Path))
		}
		seen[n.Path] = true
		if faults = append(faults, validateClean(n.Path, at)...); !strings.HasPrefix(n.Path, "/dev/") {
			faults = append(faults, field.Invalid(at, n.Path, "must be below /dev"))
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
	for i := range r.Env {
		faults = append(faults, r.Env[i].Validate(path.Child("env").Index(i))...)
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
		faults = append(faults, r.Hooks[i].validate(path.Child("hooks").Index(i), cluster)...)
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
	if s.MinCount != nil && *s.MinCount < 1 {
		faults = append(faults, field.Invalid(path.Child("minCount"), *s.MinCount, "must be at least 1"))
	}
	faults = append(faults, validateClasses(s.DeviceClassNames, path.Child("deviceClassNames"))...)
	if a := s.Absent; a != nil {
		path = path.Child("absent")
		if len(a.DeviceClassNames) == 0 && a.CEL == "" {
			faults = append(faults, field.Required(path, "set deviceClassNames, cel or both"))
		}
		faults = append(faults, validateClasses(a.DeviceClassNames, path.Child("deviceClassNames"))...)
	}
	return faults
}

func validateClasses(names []string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i, name := range names {
		for _, detail := range validation.IsDNS1123Subdomain(name) {
			faults = append(faults, field.Invalid(path.Index(i), name, detail))
		}
		if slices.Contains(names[:i], name) {
			faults = append(faults, field.Duplicate(path.Index(i), name))
		}
	}
	return faults
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func modeOrSet(mode EnvMode) EnvMode {
	if mode == "" {
		return EnvSet
	}
	return mode
}

// Validate reports every fault of the variable below path.
func (e *PresetEnv) Validate(path *field.Path) field.ErrorList {
	faults := validateEnvName(e.Name, path.Child("name"))
	if (e.Value == nil) == (e.ValueFrom == nil) {
		faults = append(faults, field.Required(path, "set exactly one of value and valueFrom"))
	}
	if e.Value != nil && strings.ContainsRune(*e.Value, 0) {
		faults = append(faults, field.Invalid(path.Child("value"), *e.Value, "must have no NUL character"))
	}
	if e.ValueFrom != nil {
		ref := path.Child("valueFrom", "configMapKeyRef")
		faults = append(faults, validateConfigMap(e.ValueFrom.ConfigMapKeyRef.Name, ref.Child("name"))...)
		for _, detail := range validation.IsConfigMapKey(e.ValueFrom.ConfigMapKeyRef.Key) {
			faults = append(faults, field.Invalid(ref.Child("key"), e.ValueFrom.ConfigMapKeyRef.Key, detail))
		}
	}
	mode := e.EffectiveMode()
	if modes := []EnvMode{EnvSet, EnvDefault, EnvPrepend, EnvAppend}; !slices.Contains(modes, mode) {
		return append(faults, field.NotSupported(path.Child("mode"), mode, modes))
	}
	joins := mode == EnvPrepend || mode == EnvAppend
	if e.Separator != nil && !joins {
		faults = append(faults, field.Forbidden(path.Child("separator"), "is for mode prepend and append"))
	}
	if (e.Name == EnvPath || e.Name == EnvLibraryPath) && (mode != EnvAppend || e.Value == nil || e.Separator != nil) {
		return append(faults, field.Forbidden(path, e.Name+
			" takes only mode append, with a value and a colon between directories: another would hide what the image sets"))
	}
	if (e.Name == EnvPath || e.Name == EnvLibraryPath) && e.Value != nil {
		for dir := range strings.SplitSeq(*e.Value, ":") {
			faults = append(faults, validateClean(dir, path.Child("value"))...)
		}
	}
	return faults
}

func (e *PresetEnvFrom) validate(path *field.Path) field.ErrorList {
	faults := validateConfigMap(e.ConfigMapRef.Name, path.Child("configMapRef", "name"))
	if e.Prefix != "" {
		faults = append(faults, validateEnvName(e.Prefix, path.Child("prefix"))...)
	}
	if modes := []EnvMode{EnvSet, EnvDefault}; !slices.Contains(modes, e.EffectiveMode()) {
		faults = append(faults, field.NotSupported(path.Child("mode"), e.Mode, modes))
	}
	return faults
}

func validateEnvName(name string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, detail := range validation.IsCIdentifier(name) {
		faults = append(faults, field.Invalid(path, name, detail))
	}
	return faults
}

func validateConfigMap(name string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, detail := range validation.IsDNS1123Subdomain(name) {
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
// anywhere but where the runtime itself refuses.
func validateContainerPath(dir string, path *field.Path, cluster bool) field.ErrorList {
	if !cluster {
		return validateMountPath(dir, path)
	}
	if faults := validateClean(dir, path); len(faults) > 0 {
		return faults
	}
	for _, tree := range []string{"/proc", "/sys"} {
		if within(dir, tree) || within(tree, dir) {
			return field.ErrorList{field.Invalid(path, dir, "must not cover or lie in "+tree)}
		}
	}
	return nil
}

func (s *PresetScratch) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	size, err := resource.ParseQuantity(s.SizeLimit)
	if err != nil || size.Sign() <= 0 {
		faults = append(faults, field.Invalid(path.Child("sizeLimit"), s.SizeLimit, "must be a quantity above 0, such as 512Mi"))
	}
	switch s.Medium {
	case "", ScratchMemory, ScratchDisk:
	default:
		faults = append(faults, field.NotSupported(path.Child("medium"), s.Medium, []ScratchMedium{ScratchDisk, ScratchMemory}))
	}
	return faults
}

func (f *PresetFiles) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if len(f.Names) == 0 {
		faults = append(faults, field.Required(path.Child("names"), "name at least one file, such as libcuda.so.*"))
	}
	pattern := regexp.MustCompile(`^[A-Za-z0-9_*?][A-Za-z0-9_.*?+-]*$`)
	for i, name := range f.Names {
		if !pattern.MatchString(name) || len(name) > 128 {
			faults = append(faults, field.Invalid(path.Child("names").Index(i), name,
				"must be a file name of at most 128 letters, digits and any of _ . + - * ?, with no directory"))
		}
	}
	if f.Root != "" {
		faults = append(faults, validateClean(f.Root, path.Child("root"))...)
	}
	for i, dir := range f.Directories {
		faults = append(faults, validateClean(dir, path.Child("directories").Index(i))...)
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
	for i, dir := range h.Directories {
		faults = append(faults, validateClean(dir, path.Child("directories").Index(i))...)
	}
	for i, link := range h.Links {
		at := path.Child("links").Index(i)
		faults = append(faults, validateContainerPath(link.Path, at.Child("path"), cluster)...)
		if link.Target == "" || strings.ContainsFunc(link.Target, unprintable) {
			faults = append(faults, field.Invalid(at.Child("target"), link.Target, "must be a path of printable characters"))
		}
	}
	return faults
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// validateClean wants an absolute, clean path below the root.
func validateClean(name string, at *field.Path) field.ErrorList {
	switch {
	case !strings.HasPrefix(name, "/"):
		return field.ErrorList{field.Invalid(at, name, "must be absolute: start it with /")}
	case path.Clean(name) != name:
		return field.ErrorList{field.Invalid(at, name, "must be clean: no //, no . or .. and no / at the end; use "+path.Clean(name))}
	case name == "/":
		return field.ErrorList{field.Invalid(at, name, "must not be the root itself: name what is needed of it")}
	case strings.ContainsFunc(name, unprintable):
		return field.ErrorList{field.Invalid(at, name, "must have printable characters only")}
	}
	return nil
}

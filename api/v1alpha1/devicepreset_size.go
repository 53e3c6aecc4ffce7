// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What presets may have at most in bytes. Nodes and the controller keep presets in memory, and what a preset gives is in the record and the
// CDI spec of each claim.
const (
	// MaxPresetEnv is for the values of a preset's variables, MaxPresetFiles for all paths and names of its mounts, libraries, tools and
	// hooks. The CRDs say the same.
	MaxPresetEnv   = 64 << 10
	MaxPresetFiles = 64 << 10
	// MaxPresetLabels is how many labels, and how many expressions, a podSelector may have.
	MaxPresetLabels = 32
	// MaxPresetSize is for the Size of a preset, its selectors included. A preset above it is not kept. The API server may hold one: from an
	// earlier version, or with long values in podSelector.
	MaxPresetSize = 256 << 10
	// MaxPresetsSize and MaxPresets are for the DevicePresets of one namespace together, of which each counts as MinPresetSize at least.
	MaxPresetsSize = 1 << 20
	MaxPresets     = 256
	MinPresetSize  = 1 << 10
	// MaxClaimPresets is for what presets give to the claims of one pod together, each request counted. MaxClaimConfigMaps is for the data
	// of all ConfigMaps that are read for it.
	MaxClaimPresets    = 128 << 10
	MaxClaimConfigMaps = 2 << 20
)

// sizeOf returns the sum of a size over a list.
func sizeOf[T any](list []T, size func(*T) int) (sum int) {
	for i := range list {
		sum += size(&list[i])
	}
	return sum
}

func sizeOfTexts(texts []string) int { return sizeOf(texts, func(s *string) int { return len(*s) }) }

// envSize returns the bytes of the values of variables.
func (r *PresetRules) envSize() int {
	return sizeOf(r.Env, func(e *PresetEnv) int {
		if e.Value == nil {
			return 0
		}
		return len(*e.Value)
	})
}

// filesSize returns the bytes of the paths and names of files.
func (r *PresetRules) filesSize() int {
	files := func(f *PresetFiles) int { return len(f.Root) + sizeOfTexts(f.Names) + sizeOfTexts(f.Directories) }
	return sizeOf(r.Mounts, func(m *PresetMount) int { return len(m.HostPath) + len(m.ContainerPath) }) +
		sizeOf(r.Libraries, files) + sizeOf(r.Tools, files) +
		sizeOf(r.Hooks, func(h *PresetHook) int {
			return sizeOfTexts(h.Directories) + sizeOf(h.Links, func(l *PresetLink) int { return len(l.Path) + len(l.Target) })
		})
}

// GivenSize returns the bytes that the preset gives to each request, without what it takes from ConfigMaps.
func (r *PresetRules) GivenSize() int {
	return r.envSize() + r.filesSize() + sizeOf(r.Env, func(e *PresetEnv) int { return len(e.Name) })
}

// eachText is the memory of a text or an entry of a list beside its bytes, about. A tenant may make very many short ones.
const eachText = 32

// Size returns the memory that the preset takes, about. That of rules that were left out is what they would take.
func (r *PresetRules) Size() int {
	if r.LeftOut > 0 {
		return r.LeftOut
	}
	texts := func(list []string) int { return len(list) * eachText }
	files := func(f *PresetFiles) int { return eachText + texts(f.Names) + texts(f.Directories) }
	size := r.GivenSize() + selectorSize(r.PodSelector) + (len(r.Env)+len(r.EnvFrom)+len(r.Mounts))*2*eachText +
		sizeOf(r.Libraries, files) + sizeOf(r.Tools, files) +
		sizeOf(r.Hooks, func(h *PresetHook) int { return texts(h.Directories) + len(h.Links)*eachText })
	if s := r.DeviceSelector; s != nil {
		size += sizeOfTexts(s.DeviceClassNames) + texts(s.DeviceClassNames) + len(s.CEL)
		if s.Absent != nil {
			size += sizeOfTexts(s.Absent.DeviceClassNames) + texts(s.Absent.DeviceClassNames) + len(s.Absent.CEL)
		}
	}
	return size
}

func selectorSize(s *metav1.LabelSelector) (size int) {
	if s == nil {
		return 0
	}
	for key, value := range s.MatchLabels {
		size += eachText + len(key) + len(value)
	}
	for _, e := range s.MatchExpressions {
		size += eachText + len(e.Key) + len(e.Operator) + len(e.Values)*eachText + sizeOfTexts(e.Values)
	}
	return size
}

// OnlySelection returns the part of the rules that says for whom they are, for presets that are too large to be kept. A selection that is
// too large itself is left out.
func (r *PresetRules) OnlySelection() PresetRules {
	out := PresetRules{DeviceSelector: r.DeviceSelector, PodSelector: r.PodSelector, Priority: r.Priority}
	if out.Size() > MaxPresetSize/4 {
		return PresetRules{Priority: r.Priority}
	}
	return out
}

// Size returns the memory that the conditions take, about.
func (s *DevicePresetStatus) Size() int {
	const each = 256
	return sizeOf(s.Conditions, func(c *metav1.Condition) int { return each + len(c.Type) + len(c.Reason) + len(c.Message) })
}

// Kept returns the rules as a process keeps them in memory, in which namespaces have shares: all, if share takes them, and of rules that
// are too large by themselves the selection.
func (r *PresetRules) Kept(share func(size int) bool) PresetRules {
	if r.LeftOut > 0 {
		return *r
	}
	size, out := r.Size(), *r
	if size > MaxPresetSize {
		out = r.OnlySelection()
	}
	if !share(out.Size()) {
		out = PresetRules{Priority: r.Priority}
	}
	if out.Size() != size {
		out.LeftOut = size
	}
	return out
}

// TooLarge returns the fault of a preset that is too large to be kept. It may be nil.
func (r *PresetRules) TooLarge(path *field.Path) field.ErrorList {
	if size := r.Size(); size > MaxPresetSize {
		return field.ErrorList{tooManyBytes(path, "the preset", size, MaxPresetSize)}
	}
	return nil
}

func (r *PresetRules) validateSize(path *field.Path) field.ErrorList {
	faults := r.TooLarge(path)
	if size := r.envSize(); size > MaxPresetEnv {
		faults = append(faults, tooManyBytes(path.Child("env"), "the values together", size, MaxPresetEnv))
	}
	if size := r.filesSize(); size > MaxPresetFiles {
		faults = append(faults, tooManyBytes(path, "the paths and names of mounts, libraries, tools and hooks together", size, MaxPresetFiles))
	}
	if s := r.PodSelector; s != nil {
		faults = slices.Concat(faults, atMost(len(s.MatchLabels), MaxPresetLabels, path.Child("podSelector", "matchLabels")),
			atMost(len(s.MatchExpressions), MaxPresetLabels, path.Child("podSelector", "matchExpressions")))
	}
	return faults
}

func tooManyBytes(path *field.Path, what string, size, limit int) *field.Error {
	return field.Invalid(path, field.OmitValueType{},
		fmt.Sprintf("%s must have at most %d bytes and have %d: put large data into a ConfigMap or volume of the pod", what, limit, size))
}

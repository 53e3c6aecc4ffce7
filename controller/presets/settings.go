// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// setting is a part of a container's environment that only one preset can decide.
type setting struct{ kind, name string }

func (t setting) String() string { return t.kind + " " + t.name }

func compareSettings(a, b setting) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}

// The kinds of settings.
const (
	settingVariable = "variable"
	settingMount    = "mount"
	settingNode     = "device node"
	settingLibrary  = "library"
	settingTool     = "tool"
	settingDriver   = "driver of"
)

// settingsOf returns the settings that a preset decides, each with a short text that is equal for equal values. Optional parts count like
// others. The keys of whole ConfigMaps are known on the nodes only.
func settingsOf(p *preset.Preset) map[setting]string {
	out := map[setting]string{}
	for i := range p.Rules.Env {
		if e := &p.Rules.Env[i]; e.EffectiveMode() == v1alpha1.EnvSet {
			out[setting{settingVariable, e.Name}] = valueOf(p, e)
		}
	}
	for _, m := range p.Rules.Mounts {
		name := setting{settingMount, m.ContainerPath}
		readOnly := m.Scratch == nil && (m.ReadOnly == nil || *m.ReadOnly)
		m.ReadOnly, m.Optional, m.Propagation = &readOnly, false, cmp.Or(m.Propagation, v1alpha1.PropagationNone)
		out[name] = textOf(m)
	}
	for _, n := range p.DeviceNodes {
		n.Optional = false
		out[setting{settingNode, n.Path}] = textOf(n)
	}
	if d := p.Driver; d != nil {
		out[setting{settingDriver, string(d.Vendor)}] = textOf(d.Root) // an unset root is configured on each node, and is not /
	}
	filesOf(out, settingLibrary, p.Rules.Libraries)
	filesOf(out, settingTool, p.Rules.Tools)
	for name, text := range out {
		if len(text) > sha256.Size {
			sum := sha256.Sum256([]byte(text))
			out[name] = string(sum[:])
		}
	}
	return out
}

// valueOf returns a text for the value, or for its source.
func valueOf(p *preset.Preset, e *v1alpha1.PresetEnv) string {
	if e.Value != nil {
		return textOf(*e.Value)
	}
	ref := e.ValueFrom.ConfigMapKeyRef
	return textOf([]string{p.Namespace, ref.Name, ref.Key})
}

// filesOf adds each file name with the places where it is searched.
func filesOf(out map[setting]string, kind string, files []v1alpha1.PresetFiles) {
	for i := range files {
		f := &files[i]
		place := textOf(append([]string{cmp.Or(f.Root, "/")}, f.Directories...))
		for _, name := range slices.Compact(slices.Sorted(slices.Values(f.Names))) {
			out[setting{kind, name}] += place
		}
	}
}

// textOf returns different texts for different values.
func textOf(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error() // these are strings, numbers and lists of them
	}
	return string(data)
}

// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// thing is what only one preset can decide for a container.
type thing struct{ kind, name string }

func (t thing) String() string { return t.kind + " " + t.name }

func compareThings(a, b thing) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}

// The kinds of things.
const (
	thingVariable = "variable"
	thingMount    = "mount"
	thingNode     = "device node"
	thingLibrary  = "library"
	thingTool     = "tool"
	thingDriver   = "driver of"
)

// thingsOf are what a preset decides, each with a text that is the same where two decide the same. Whether a part is optional makes no
// difference to what it is. Keys of whole ConfigMaps are known on the nodes only.
func thingsOf(p *preset.Preset) map[thing]string {
	out := map[thing]string{}
	for i := range p.Rules.Env {
		if e := &p.Rules.Env[i]; e.EffectiveMode() == v1alpha1.EnvSet {
			out[thing{thingVariable, e.Name}] = valueOf(p, e)
		}
	}
	for _, m := range p.Rules.Mounts {
		name := thing{thingMount, m.ContainerPath}
		readOnly := m.Scratch == nil && (m.ReadOnly == nil || *m.ReadOnly)
		m.ReadOnly, m.Optional, m.Propagation = &readOnly, false, cmp.Or(m.Propagation, v1alpha1.PropagationNone)
		out[name] = textOf(m)
	}
	for _, n := range p.DeviceNodes {
		n.Optional = false
		out[thing{thingNode, n.Path}] = textOf(n)
	}
	if d := p.Driver; d != nil {
		out[thing{thingDriver, string(d.Vendor)}] = textOf(d.Root) // unset is what each node says, and not the same as /
	}
	filesOf(out, thingLibrary, p.Rules.Libraries)
	filesOf(out, thingTool, p.Rules.Tools)
	return out
}

// valueOf is where a value is from, or the value itself.
func valueOf(p *preset.Preset, e *v1alpha1.PresetEnv) string {
	if e.Value != nil {
		return textOf(*e.Value)
	}
	ref := e.ValueFrom.ConfigMapKeyRef
	return textOf([]string{p.Namespace, ref.Name, ref.Key})
}

// filesOf says of each name where it is looked for.
func filesOf(out map[thing]string, kind string, files []v1alpha1.PresetFiles) {
	for i := range files {
		f := &files[i]
		place := textOf(append([]string{cmp.Or(f.Root, "/")}, f.Directories...))
		for _, name := range slices.Compact(slices.Sorted(slices.Values(f.Names))) {
			out[thing{kind, name}] += place
		}
	}
}

// textOf is never the same for different values.
func textOf(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error() // these are strings, numbers and lists of them
	}
	return string(data)
}

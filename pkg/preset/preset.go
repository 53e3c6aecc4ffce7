// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Preset is a DevicePreset or a ClusterDevicePreset.
type Preset struct {
	// Namespace is empty for a ClusterDevicePreset.
	Namespace  string
	Name       string
	Generation int64
	Created    time.Time
	Rules      v1alpha1.PresetRules
	// NamespaceSelector, DeviceNodes and Driver are set only for a ClusterDevicePreset.
	NamespaceSelector *metav1.LabelSelector
	DeviceNodes       []v1alpha1.PresetDeviceNode
	Driver            *v1alpha1.PresetDriver
	faults            field.ErrorList
}

// maxFaults is how many faults of a preset are kept.
const maxFaults = 16

// Of converts a preset of either kind. Of one that is too large it keeps whom it is for, and the fault.
func Of(p v1alpha1.CommonDevicePreset) Preset {
	out := Preset{
		Namespace: p.GetNamespace(), Name: p.GetName(), Generation: p.GetGeneration(), Created: p.GetCreationTimestamp().Time,
		Rules: p.Spec.PresetRules, NamespaceSelector: p.Spec.NamespaceSelector, DeviceNodes: p.Spec.DeviceNodes, Driver: p.Spec.Driver,
	}
	path := field.NewPath("spec")
	if out.faults = p.Spec.TooLarge(path); len(out.faults) > 0 {
		out.Rules, out.DeviceNodes, out.Driver = p.Spec.OnlySelection(), nil, nil
		return out
	}
	faults := p.Validate(path)
	out.faults = slices.Clone(faults[:min(len(faults), maxFaults)])
	return out
}

// Origin names the preset, in one generation, that a value is from.
type Origin struct {
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
}

// String returns "ClusterDevicePreset nvidia" or "DevicePreset team/debug".
func (o Origin) String() string {
	if o.Namespace == "" {
		return v1alpha1.KindClusterDevicePreset + " " + o.Name
	}
	return v1alpha1.KindDevicePreset + " " + o.Namespace + "/" + o.Name
}

// Origin returns the origin of values of this preset.
func (p *Preset) Origin() Origin {
	return Origin{Namespace: p.Namespace, Name: p.Name, Generation: p.Generation}
}

// inOrder returns the presets in the order of application, in which a later one wins: cluster presets first, then by priority, age and
// name.
func inOrder(presets []Preset) []*Preset {
	out := make([]*Preset, len(presets))
	for i := range presets {
		out[i] = &presets[i]
	}
	slices.SortStableFunc(out, Compare)
	return out
}

// Compare is negative if a is applied before b, so that b wins.
func Compare(a, b *Preset) int {
	return cmp.Or(
		cmp.Compare(min(len(a.Namespace), 1), min(len(b.Namespace), 1)),
		cmp.Compare(a.Rules.Priority, b.Rules.Priority),
		a.Created.Compare(b.Created),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

// Faults lists everything that is wrong with the preset, including conditions that do not compile.
func (p *Preset) Faults(c *Conditions) field.ErrorList {
	faults := slices.Clone(p.faults)
	s := p.Rules.DeviceSelector
	if s == nil {
		return faults
	}
	at := field.NewPath("spec", "deviceSelector")
	check := func(at *field.Path, expression string) {
		if expression == "" {
			return
		}
		if err := c.Check(expression); err != nil {
			faults = append(faults, field.Invalid(at, field.OmitValueType{}, err.Error()))
		}
	}
	check(at.Child("cel"), s.CEL)
	if s.Absent != nil {
		check(at.Child("absent", "cel"), s.Absent.CEL)
	}
	return faults
}

// Overrides tells people which preset replaced which value of which other preset, sorted by the value.
func (r *Request) Overrides() []string {
	var out []string
	lost := func(what string, to Origin, origins []Origin) {
		for _, o := range origins {
			out = append(out, fmt.Sprintf("%s of %s overrides that of %s", what, to, o))
		}
	}
	for i := range r.Env {
		v := &r.Env[i]
		winner := v.From[len(v.From)-1]
		lost("variable "+v.Name, winner, v.Overrode)
		if v.OverrodePod {
			out = append(out, fmt.Sprintf("variable %s of %s overrides the pod's", v.Name, winner))
		}
	}
	for i := range r.Mounts {
		lost("the mount at "+r.Mounts[i].ContainerPath, r.Mounts[i].From, r.Mounts[i].Overrode)
	}
	for i := range r.Nodes {
		lost("device node "+r.Nodes[i].Path, r.Nodes[i].From, r.Nodes[i].Overrode)
	}
	for i := range r.Drivers {
		lost("the driver of "+string(r.Drivers[i].Vendor), r.Drivers[i].From, r.Drivers[i].Overrode)
	}
	return out
}

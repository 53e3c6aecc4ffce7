// SPDX-License-Identifier: Apache-2.0

// Package shippedpresets keeps the ClusterDevicePresets of vendors that Fettle ships.
package shippedpresets

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// Annotation on a ClusterDevicePreset that the controller made has the hash of the shipped spec. If the spec has another hash, an
// administrator changed it.
const Annotation = v1alpha1.GroupName + "/shipped-spec"

// priority is lower than that of administrators' presets, which start at 0, so that those win.
const priority = -1000

// Vendors returns the vendors whose presets can be shipped, sorted.
func Vendors() []string {
	var out []string
	for _, p := range vendors.Presets() {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return out
}

// Presets returns the ClusterDevicePresets of vendors, each named VENDOR.fettle.dev, sorted. It leaves out unknown vendors.
func Presets(of []string) []*v1alpha1.ClusterDevicePreset {
	var out []*v1alpha1.ClusterDevicePreset
	for _, p := range vendors.Presets() {
		if !slices.Contains(of, p.Name) {
			continue
		}
		spec := specOf(&p)
		out = append(out, &v1alpha1.ClusterDevicePreset{
			ObjectMeta: metav1.ObjectMeta{
				Name:        p.Name + "." + v1alpha1.DriverName,
				Labels:      map[string]string{names.ManagedByLabel: names.Controller},
				Annotations: map[string]string{Annotation: SpecHash(&spec)},
			},
			Spec: spec,
		})
	}
	slices.SortFunc(out, func(a, b *v1alpha1.ClusterDevicePreset) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// specOf returns the preset of a row. What it lists is given if it exists.
func specOf(p *vendors.Preset) v1alpha1.ClusterDevicePresetSpec {
	spec := where(fmt.Sprintf("%s == %q", attribute("type"), device.KindFPGA), fmt.Sprintf("%s == %q", attribute("backend"), p.Backend))
	if p.Backend == "" {
		types := make([]string, 0, len(p.Types))
		for _, name := range p.Types {
			types = append(types, strconv.Quote(name))
		}
		spec = where(fmt.Sprintf("%s == %q", attribute("vendor"), p.Vendor),
			fmt.Sprintf("%s in [%s]", attribute("type"), strings.Join(types, ", ")))
	}
	spec.Priority = priority
	if p.Driver != "" {
		spec.Driver = &v1alpha1.PresetDriver{Vendor: v1alpha1.DriverVendor(p.Driver)}
	}
	spec.Libraries, spec.Tools = optional(p.Libraries), optional(vendors.Files{Names: p.Tools})
	for _, m := range p.Mounts {
		spec.Mounts = append(spec.Mounts, v1alpha1.PresetMount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Optional: true})
	}
	return spec
}

// attribute is a CEL expression for an attribute, empty if a device has none.
func attribute(name string) string {
	return fmt.Sprintf("device.attributes[%q].?%s.orValue(\"\")", v1alpha1.DriverName, name)
}

func where(conditions ...string) (spec v1alpha1.ClusterDevicePresetSpec) {
	spec.DeviceSelector = &v1alpha1.PresetDeviceSelector{CEL: strings.Join(conditions, " && ")}
	return spec
}

// optional returns files that are given if they exist.
func optional(f vendors.Files) []v1alpha1.PresetFiles {
	if len(f.Names) == 0 {
		return nil
	}
	return []v1alpha1.PresetFiles{{Names: f.Names, Directories: f.Directories, Optional: true}}
}

// SpecHash returns a hash of the spec.
func SpecHash(spec *v1alpha1.ClusterDevicePresetSpec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Sprintf("unknown: %v", err) // it is made of strings, numbers and lists of them
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// AsShipped says whether the controller made a preset and its spec is unchanged.
func AsShipped(live *v1alpha1.ClusterDevicePreset) bool {
	return live.Labels[names.ManagedByLabel] == names.Controller && live.Annotations[Annotation] == SpecHash(&live.Spec)
}

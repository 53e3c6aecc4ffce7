// SPDX-License-Identifier: Apache-2.0

// Package presets checks DevicePresets and ClusterDevicePresets: it writes to their status which fields are wrong and which presets
// conflict, and warns of classes that lack a preset. What claims get of presets is decided on their nodes, by package preset.
package presets

import (
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
)

// Object is a preset of either kind.
type Object struct {
	v1alpha1.CommonDevicePreset

	// ConfigMapNamespace is the namespace of the ConfigMaps that it names.
	ConfigMapNamespace string
}

// Of returns a preset. The ConfigMaps of a cluster preset are in the driver's namespace.
func Of(p v1alpha1.CommonDevicePreset, driver string) Object {
	return Object{CommonDevicePreset: p, ConfigMapNamespace: p.ReferenceNamespace(driver)}
}

// Grant returns the request for the Role by which the nodes read its ConfigMaps.
func (o Object) Grant() grant.Request {
	return grant.Request{
		Owner: o.Object, Kind: o.Kind, Resource: "configmaps", Namespace: o.ConfigMapNamespace, Names: configMaps(&o.Spec.PresetRules),
	}
}

// configMaps returns the names of the ConfigMaps that give variables, sorted.
func configMaps(r *v1alpha1.PresetRules) []string {
	var names []string
	for i := range r.Env {
		if from := r.Env[i].ValueFrom; from != nil {
			names = append(names, from.ConfigMapKeyRef.Name)
		}
	}
	for i := range r.EnvFrom {
		names = append(names, r.EnvFrom[i].ConfigMapRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SPDX-License-Identifier: Apache-2.0

// Package presets is what the controller knows of DevicePresets and ClusterDevicePresets, apart from its queue: what is wrong with one,
// which of them collide, which classes lack one, and what the status says of it. What claims get is decided on their nodes, by package
// preset.
package presets

import (
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
)

// Object is a preset of either kind.
type Object struct {
	v1alpha1.CommonDevicePreset

	// ConfigMapNamespace is where the ConfigMaps are that it names.
	ConfigMapNamespace string
}

// Of returns a preset whose ConfigMaps are beside it, or in the driver's namespace if it is of the cluster.
func Of(p v1alpha1.CommonDevicePreset, driver string) Object {
	return Object{CommonDevicePreset: p, ConfigMapNamespace: p.ReferenceNamespace(driver)}
}

// Grant is what the nodes need to read for it.
func (o Object) Grant() grant.Request {
	return grant.Request{
		Owner: o.Object, Kind: o.Kind, Resource: "configmaps", Namespace: o.ConfigMapNamespace, Names: configMaps(&o.Spec.PresetRules),
	}
}

// configMaps are the names of the ConfigMaps that variables are from, sorted.
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

// SPDX-License-Identifier: Apache-2.0

// Package presets is what the controller knows of DevicePresets and ClusterDevicePresets, apart from its queue: what is wrong with one,
// which of them collide, which classes lack one, and what the status says of it. What claims get is decided on their nodes, by package
// preset.
package presets

import (
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// Object is what both kinds have in common.
type Object struct {
	// Object is the one of the API; Status is its.
	client.Object
	Status *v1alpha1.DevicePresetStatus
	// Kind is DevicePreset or ClusterDevicePreset.
	Kind string
	// Preset is what counts of it.
	Preset preset.Preset
	// ConfigMapNamespace is where the ConfigMaps are that it names.
	ConfigMapNamespace string
}

// OfNamespace is a DevicePreset, whose ConfigMaps are beside it.
func OfNamespace(p *v1alpha1.DevicePreset) Object {
	return Object{
		Object: p, Status: &p.Status, Kind: v1alpha1.KindDevicePreset, Preset: preset.Of(p), ConfigMapNamespace: p.Namespace,
	}
}

// OfCluster is a ClusterDevicePreset, whose ConfigMaps are in the driver's namespace.
func OfCluster(p *v1alpha1.ClusterDevicePreset, driver string) Object {
	return Object{
		Object: p, Status: &p.Status, Kind: v1alpha1.KindClusterDevicePreset, Preset: preset.OfCluster(p), ConfigMapNamespace: driver,
	}
}

// Grant is what the nodes need to read for it.
func (o Object) Grant() grant.Request {
	return grant.Request{
		Owner: o.Object, Kind: o.Kind, Resource: "configmaps", Namespace: o.ConfigMapNamespace, Names: configMaps(&o.Preset.Rules),
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

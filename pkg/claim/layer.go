// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// layer is one configuration of the allocation that is this driver's, decoded and valid.
type layer struct {
	config v1alpha1.Config
	source Source
	entry  resourceapi.DeviceAllocationConfiguration
	// applies holds the index of each own result that the layer is for.
	applies map[int]bool
}

// decodeLayers decodes the driver's entries. Classes come first and the claim last, each in the order of the allocation: the
// API does not promise that order, only the source of each entry.
func decodeLayers(entries []resourceapi.DeviceAllocationConfiguration, driver string) ([]layer, field.ErrorList) {
	var fromClass, fromClaim []layer
	var faults field.ErrorList
	for i, entry := range entries {
		if entry.Opaque == nil || entry.Opaque.Driver != driver {
			continue
		}
		path := configPath(i)
		switch entry.Source {
		case resourceapi.AllocationConfigSourceClass:
			l, wrong := decodeLayer(entry, Source{Origin: OriginClass, Index: i})
			fromClass, faults = append(fromClass, l), append(faults, wrong...)
		case resourceapi.AllocationConfigSourceClaim:
			l, wrong := decodeLayer(entry, Source{Origin: OriginClaim, Index: i})
			fromClaim, faults = append(fromClaim, l), append(faults, wrong...)
		default:
			known := []resourceapi.AllocationConfigSource{
				resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim,
			}
			faults = append(faults, field.NotSupported(path.Child("source"), entry.Source, known))
		}
	}
	return append(fromClass, fromClaim...), faults
}

func decodeLayer(entry resourceapi.DeviceAllocationConfiguration, source Source) (layer, field.ErrorList) {
	l := layer{entry: entry, source: source, applies: map[int]bool{}}
	config, faults := decode(entry.Opaque, source)
	l.config = config
	return l, faults
}

// decode decodes a configuration and validates it.
func decode(opaque *resourceapi.OpaqueDeviceConfiguration, source Source) (v1alpha1.Config, field.ErrorList) {
	config, faults := v1alpha1.DecodeConfig(opaque.Parameters.Raw, source.parameters())
	if config == nil {
		return nil, faults
	}
	return config, config.Validate(source.Origin == OriginClass, source.parameters())
}

// assign notes which results the layer is for and reports those it names and does not fit. A layer that names no request is
// for every result of its kind, and has to find at least one.
func (l *layer) assign(results []ownResult) field.ErrorList {
	if l.config == nil {
		return nil
	}
	kind, want := configKind(l.config)
	var faults field.ErrorList
	for i, r := range results {
		one := []resourceapi.DeviceAllocationConfiguration{l.entry}
		if len(resourceclaim.ConfigForResult(one, r.api)) == 0 {
			continue
		}
		if r.Kind == want {
			l.applies[i] = true
			continue
		}
		if len(l.entry.Requests) > 0 {
			faults = append(faults, l.misfit(kind, r))
		}
	}
	if len(l.entry.Requests) == 0 && len(l.applies) == 0 {
		faults = append(faults, field.Invalid(l.kindPath(), kind,
			fmt.Sprintf("the claim has no device of kind %s from this driver: remove the entry or use another kind", want)))
	}
	return faults
}

// misfit names the way out for the one who wrote the entry.
func (l *layer) misfit(kind string, r ownResult) *field.Error {
	next := "name only requests of its own kind in the entry's requests"
	switch {
	case l.source.Origin == OriginClass:
		next = "the class selects devices that its configuration is not for: ask an administrator to correct it"
	case r.Request != r.BaseRequest:
		next = "name the alternative it is for (" + r.BaseRequest + "/<name>) in the entry's requests"
	}
	return field.Invalid(l.kindPath(), kind,
		fmt.Sprintf("does not fit request %s, which got a device of kind %s: %s", r.Request, r.Kind, next))
}

func (l *layer) kindPath() *field.Path { return l.source.parameters().Child("kind") }

func configPath(index int) *field.Path {
	return allocationPath().Child("devices", "config").Index(index)
}

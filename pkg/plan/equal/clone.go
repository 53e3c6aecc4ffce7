// SPDX-License-Identifier: Apache-2.0

package equal

import (
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Clone copies slices. Devices that share a map share its copy, so that the copies take as little as the slices.
func Clone(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	attributes := sharedCopies[resourceapi.QualifiedName, resourceapi.DeviceAttribute]{}
	capacities := sharedCopies[resourceapi.QualifiedName, resourceapi.DeviceCapacity]{}
	counters := sharedCopies[string, resourceapi.Counter]{}
	out := make([]*resourceapi.ResourceSlice, len(all))
	for i, from := range all {
		to := withoutMaps(from).DeepCopy()
		for j := range from.Spec.SharedCounters {
			to.Spec.SharedCounters[j].Counters = counters.of(from.Spec.SharedCounters[j].Counters, (*resourceapi.Counter).DeepCopy)
		}
		for j := range from.Spec.Devices {
			d, copied := &from.Spec.Devices[j], &to.Spec.Devices[j]
			copied.Attributes = attributes.of(d.Attributes, (*resourceapi.DeviceAttribute).DeepCopy)
			copied.Capacity = capacities.of(d.Capacity, (*resourceapi.DeviceCapacity).DeepCopy)
			for k := range d.ConsumesCounters {
				copied.ConsumesCounters[k].Counters = counters.of(d.ConsumesCounters[k].Counters, (*resourceapi.Counter).DeepCopy)
			}
		}
		out[i] = to
	}
	return out
}

// withoutMaps returns a slice whose devices have no attributes, capacities and counters. It shares all else with the given one.
func withoutMaps(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	out := *slice
	out.Spec.SharedCounters, out.Spec.Devices = slices.Clone(out.Spec.SharedCounters), slices.Clone(out.Spec.Devices)
	for i := range out.Spec.SharedCounters {
		out.Spec.SharedCounters[i].Counters = nil
	}
	for i := range out.Spec.Devices {
		d := &out.Spec.Devices[i]
		d.Attributes, d.Capacity, d.ConsumesCounters = nil, nil, slices.Clone(d.ConsumesCounters)
		for j := range d.ConsumesCounters {
			d.ConsumesCounters[j].Counters = nil
		}
	}
	return &out
}

// sharedCopies are the copies of maps, by the address of the map.
type sharedCopies[K comparable, V any] map[uintptr]map[K]V

// of returns the one copy of a map. The map must not be garbage as long as copies of others are made.
func (s sharedCopies[K, V]) of(m map[K]V, copied func(*V) *V) map[K]V {
	if m == nil {
		return nil
	}
	at := reflect.ValueOf(m).Pointer()
	if known, found := s[at]; found {
		return known
	}
	out := make(map[K]V, len(m))
	for key, value := range m {
		out[key] = *copied(&value)
	}
	s[at] = out
	return out
}

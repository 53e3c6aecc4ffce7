// SPDX-License-Identifier: Apache-2.0

// Package equal keeps what ResourceSlices have in common in memory once.
package equal

import (
	"hash/maphash"
	"maps"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// Parts keeps equal attributes, capacities and counters of devices in memory once. Nodes with the same cards publish the same devices: of a
// node with eight H100 and all of their MIG instances it keeps a fifth. The zero value is ready.
type Parts struct {
	seed       maphash.Seed
	texts      map[string]string
	pointers   map[string]*string
	attributes sameMaps[resourceapi.QualifiedName, resourceapi.DeviceAttribute]
	capacities sameMaps[resourceapi.QualifiedName, resourceapi.DeviceCapacity]
	counters   sameMaps[string, resourceapi.Counter]
}

// Share has a slice use what equal devices of other slices have. Whoever changes such a map changes it for all of them: a cluster clears
// fields of gates that are off, which is the same for all. Share returns how many bytes of memory that adds to what was shared before,
// about.
func (e *Parts) Share(slice *resourceapi.ResourceSlice) (bytes int) {
	if e.texts == nil {
		e.seed, e.texts, e.pointers = maphash.MakeSeed(), map[string]string{}, map[string]*string{}
	}
	before := e.bytes()
	bytes = sizeOf[resourceapi.ResourceSlice]() + sizeOf[resourceapi.CounterSet]()*len(slice.Spec.SharedCounters)
	for i := range slice.Spec.SharedCounters {
		e.counter(&slice.Spec.SharedCounters[i].Name, &slice.Spec.SharedCounters[i].Counters)
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.Name = e.text(d.Name)
		d.Attributes = e.attributes.of(d.Attributes, e.attributeHash, sameAttribute, e.qualified, e.attribute)
		d.Capacity = e.capacities.of(d.Capacity, e.capacityHash, sameCapacity, e.qualified, same[resourceapi.DeviceCapacity])
		for j := range d.ConsumesCounters {
			e.counter(&d.ConsumesCounters[j].CounterSet, &d.ConsumesCounters[j].Counters)
		}
		bytes += sizeOf[resourceapi.Device]() + len(d.Name) + sizeOf[resourceapi.DeviceCounterConsumption]()*len(d.ConsumesCounters) +
			sizeOf[resourceapi.DeviceTaint]()*len(d.Taints)
	}
	return bytes + e.bytes() - before
}

// bytes is about what the maps take that are kept.
func (e *Parts) bytes() int { return e.attributes.bytes + e.capacities.bytes + e.counters.bytes }

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }

func (e *Parts) counter(set *string, counters *map[string]resourceapi.Counter) {
	*set = e.text(*set)
	hash := func(name string, c resourceapi.Counter) uint64 { return e.hash(name, uint64(c.Value.MilliValue())) }
	*counters = e.counters.of(*counters, hash, func(a, b resourceapi.Counter) bool { return a == b }, e.text, same[resourceapi.Counter])
}

func same[T any](value T) T { return value }

// text returns the one string of those that are equal.
func (e *Parts) text(s string) string {
	if known, found := e.texts[s]; found {
		return known
	}
	e.texts[s] = s
	return s
}

func (e *Parts) qualified(name resourceapi.QualifiedName) resourceapi.QualifiedName {
	return resourceapi.QualifiedName(e.text(string(name)))
}

// attribute has an attribute use the one pointer to its text.
func (e *Parts) attribute(a resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	for _, field := range []**string{&a.StringValue, &a.VersionValue} {
		if *field == nil {
			continue
		}
		if known := e.pointers[**field]; known != nil {
			*field = known
			continue
		}
		e.pointers[**field] = *field
	}
	return a
}

func (e *Parts) hash(name string, value uint64) uint64 {
	return (maphash.String(e.seed, name) ^ value*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
}

func (e *Parts) attributeHash(name resourceapi.QualifiedName, a resourceapi.DeviceAttribute) uint64 {
	value := uint64(ptr.Deref(a.IntValue, 0))
	if ptr.Deref(a.BoolValue, false) {
		value++
	}
	for _, text := range []*string{a.StringValue, a.VersionValue} {
		if text != nil {
			value += maphash.String(e.seed, *text)
		}
	}
	return e.hash(string(name), value)
}

// sameAttribute says whether two attributes are the same. Lists of values, which few devices have, count as different.
func sameAttribute(a, b resourceapi.DeviceAttribute) bool {
	return ptr.Equal(a.IntValue, b.IntValue) && ptr.Equal(a.BoolValue, b.BoolValue) && ptr.Equal(a.StringValue, b.StringValue) &&
		ptr.Equal(a.VersionValue, b.VersionValue) && !hasList(a) && !hasList(b)
}

func hasList(a resourceapi.DeviceAttribute) bool {
	return a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil
}

func (e *Parts) capacityHash(name resourceapi.QualifiedName, c resourceapi.DeviceCapacity) uint64 {
	return e.hash(string(name), uint64(c.Value.MilliValue()))
}

// sameCapacity says whether two capacities are the same. Those with a policy for shares count as different.
func sameCapacity(a, b resourceapi.DeviceCapacity) bool {
	return a.Value == b.Value && a.RequestPolicy == nil && b.RequestPolicy == nil
}

// sameMaps are maps of which no two are equal, by their hash.
type sameMaps[K comparable, V any] struct {
	byHash map[uint64][]map[K]V
	// bytes is about what they take: a map has room for more than its entries.
	bytes int
}

// mapBytes is about what a map takes beside its entries.
const mapBytes = 64

// of returns the one that is equal to a map: it, or one that came before. Of a new one it keeps a copy with what key and value return.
func (s *sameMaps[K, V]) of(m map[K]V, hash func(K, V) uint64, equal func(V, V) bool, key func(K) K, value func(V) V) map[K]V {
	if len(m) == 0 {
		return m
	}
	sum := uint64(len(m))
	for k, v := range m {
		sum += hash(k, v) // in any order
	}
	known := s.byHash[sum]
	if at := slices.IndexFunc(known, func(one map[K]V) bool { return maps.EqualFunc(one, m, equal) }); at >= 0 {
		return known[at]
	}
	kept := make(map[K]V, len(m))
	for k, v := range m {
		kept[key(k)] = value(v)
	}
	if s.byHash == nil {
		s.byHash = map[uint64][]map[K]V{}
	}
	s.byHash[sum] = append(known, kept)
	s.bytes += mapBytes + len(kept)*(sizeOf[K]()+sizeOf[V]())*3/2
	return kept
}

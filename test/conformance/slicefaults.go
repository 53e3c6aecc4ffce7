// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// poolFaults are what is wrong with the slices of one pool: limits of resource.k8s.io/v1, and promises over several slices, which
// the API server does not check.
func poolFaults(p pool) error {
	var errs []error
	devices := map[string]string{}
	sets := counterSets(p)
	for i := range p.slices {
		slice := &p.slices[i]
		fault := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("slice %s of pool %s: %s", slice.Name, p.name, fmt.Sprintf(format, args...)))
		}
		sliceFaults(&slice.Spec, fault)
		if want := p.slices[0].Spec.Pool.ResourceSliceCount; slice.Spec.Pool.ResourceSliceCount != want {
			fault("says that the pool has %d slices, another says %d", slice.Spec.Pool.ResourceSliceCount, want)
		}
		for j := range slice.Spec.Devices {
			d := &slice.Spec.Devices[j]
			if other, ok := devices[d.Name]; ok {
				fault("device %s is in slice %s too: a device is named once in a pool", d.Name, other)
			}
			devices[d.Name] = slice.Name
			deviceFaults(d, sets, func(format string, args ...any) { fault("device %s: %s", d.Name, fmt.Sprintf(format, args...)) })
		}
	}
	if want := p.slices[0].Spec.Pool.ResourceSliceCount; int64(len(p.slices)) != want {
		errs = append(errs, fmt.Errorf("pool %s has %d slices of its newest generation, they say %d", p.name, len(p.slices), want))
	}
	return errors.Join(errs...)
}

// faulty takes one fault.
type faulty func(format string, args ...any)

// most is a fault where there are more than max of something.
func (f faulty) most(what string, n, most int) {
	if n > most {
		f("%d %s, want at most %d", n, what, most)
	}
}

func sliceFaults(spec *resourceapi.ResourceSliceSpec, fault faulty) {
	fault.most("characters of driver name", len(spec.Driver), resourceapi.DriverNameMaxLength)
	fault.most("characters of pool name", len(spec.Pool.Name), resourceapi.PoolNameMaxLength)
	for part := range strings.SplitSeq(spec.Pool.Name, "/") {
		if problems := validation.IsDNS1123Subdomain(part); len(problems) > 0 {
			fault("pool name: %s", list(problems))
		}
	}
	reach := 0
	for _, set := range []bool{
		spec.NodeName != nil, spec.NodeSelector != nil, spec.AllNodes != nil, spec.PerDeviceNodeSelection != nil,
	} {
		if set {
			reach++
		}
	}
	if reach != 1 {
		fault("%d of nodeName, nodeSelector, allNodes and perDeviceNodeSelection are set, want exactly one", reach)
	}
	devices, why := resourceapi.ResourceSliceMaxDevices, ""
	if slices.ContainsFunc(spec.Devices, advanced) {
		devices, why = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures, " where one has taints, counters or lists"
	}
	fault.most("devices"+why, len(spec.Devices), devices)
	fault.most("counter sets", len(spec.SharedCounters), resourceapi.ResourceSliceMaxCounterSets)
	for _, set := range spec.SharedCounters {
		fault.most("counters in set "+set.Name, len(set.Counters), resourceapi.ResourceSliceMaxCountersPerCounterSet)
	}
	if len(spec.Devices) > 0 && len(spec.SharedCounters) > 0 {
		fault("has devices and shared counters, which belong into slices of their own")
	}
}

// advanced says whether a device halves the number of devices that a slice may have.
func advanced(d resourceapi.Device) bool {
	if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
		return true
	}
	for _, a := range d.Attributes {
		if a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

func deviceFaults(d *resourceapi.Device, sets map[string]bool, fault faulty) {
	if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
		fault("name: %s", list(problems))
	}
	fault.most("attributes and capacities", len(d.Attributes)+len(d.Capacity), resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	fault.most("taints", len(d.Taints), resourceapi.DeviceTaintsMaxLength)
	fault.most("binding conditions", len(d.BindingConditions), resourceapi.BindingConditionsMaxSize)
	fault.most("binding failure conditions", len(d.BindingFailureConditions), resourceapi.BindingFailureConditionsMaxSize)
	values := 0
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		nameFaults(name, fault)
		values += attributeFaults(name, d.Attributes[name], fault)
	}
	fault.most("attribute values", values, resourceapi.ResourceSliceMaxAttributeValuesPerDevice)
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		nameFaults(name, fault)
	}
	fault.most("consumed counter sets", len(d.ConsumesCounters), resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice)
	for _, c := range d.ConsumesCounters {
		fault.most("counters of set "+c.CounterSet, len(c.Counters), resourceapi.ResourceSliceMaxCountersPerDeviceCounterConsumption)
		fault.most("compatibility groups", len(c.CompatibilityGroups), resourceapi.DeviceCompatibilityGroupsMaxSize)
		for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
			if !sets[c.CounterSet+"/"+name] {
				fault("consumes counter %s of set %s, which the pool does not have", name, c.CounterSet)
			}
		}
	}
}

// nameFaults are those of an attribute's or a capacity's name.
func nameFaults(name resourceapi.QualifiedName, fault faulty) {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = "", domain
	} else if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
		fault("name %s: %s", name, list(problems))
	}
	fault.most(fmt.Sprintf("characters in the domain of %s", name), len(domain), resourceapi.DeviceMaxDomainLength)
	fault.most(fmt.Sprintf("characters in the identifier of %s", name), len(id), resourceapi.DeviceMaxIDLength)
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(id) {
		fault("name %s: %q is no C identifier", name, id)
	}
}

// attributeFaults returns the number of values.
func attributeFaults(name resourceapi.QualifiedName, a resourceapi.DeviceAttribute, fault faulty) int {
	kinds, values := 0, 0
	count := func(set bool, n int) {
		if set {
			kinds++
			values += n
		}
	}
	count(a.IntValue != nil, 1)
	count(a.BoolValue != nil, 1)
	count(a.StringValue != nil, 1)
	count(a.VersionValue != nil, 1)
	count(a.IntValues != nil, len(a.IntValues))
	count(a.BoolValues != nil, len(a.BoolValues))
	count(a.StringValues != nil, len(a.StringValues))
	count(a.VersionValues != nil, len(a.VersionValues))
	if kinds != 1 {
		fault("attribute %s has values of %d kinds, want exactly one", name, kinds)
	}
	texts := slices.Concat(a.StringValues, a.VersionValues)
	for _, p := range []*string{a.StringValue, a.VersionValue} {
		if p != nil {
			texts = append(texts, *p)
		}
	}
	for _, text := range texts {
		fault.most(fmt.Sprintf("characters in attribute %s", name), len(text), resourceapi.DeviceAttributeMaxValueLength)
	}
	return values
}

// counterSets are the pool's counters as "SET/COUNTER".
func counterSets(p pool) map[string]bool {
	out := map[string]bool{}
	for i := range p.slices {
		for _, set := range p.slices[i].Spec.SharedCounters {
			for name := range set.Counters {
				out[set.Name+"/"+name] = true
			}
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// goodPool has counters in one slice and devices in another, each at a limit of the API.
func goodPool() pool {
	counter := resourceapi.Counter{Value: resource.MustParse("1")}
	counters := map[string]resourceapi.Counter{}
	for i := range resourceapi.ResourceSliceMaxCountersPerCounterSet {
		counters[fmt.Sprintf("counter-%d", i)] = counter
	}
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"ints": {IntValues: make([]int64, resourceapi.ResourceSliceMaxAttributeValuesPerDevice-3)},
		"bool": {BoolValue: ptr.To(true)},
		"example.com/a23456789_123456789_123456789_12": {StringValue: ptr.To(strings.Repeat("x", resourceapi.DeviceAttributeMaxValueLength))},
		"version": {VersionValue: ptr.To("1.0.0")},
	}
	var devices []resourceapi.Device
	for i := range resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("dev-%d", i), Attributes: attributes,
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "set", Counters: counters}},
		})
	}
	spec := resourceapi.ResourceSliceSpec{
		Driver: fakeDriver, NodeName: ptr.To("node"), Pool: resourceapi.ResourcePool{Name: "node/a", Generation: 3, ResourceSliceCount: 2},
	}
	p := pool{name: "node/a", slices: []resourceapi.ResourceSlice{{Spec: spec}, {Spec: spec}}}
	p.slices[0].Name, p.slices[1].Name = "counters", "devices"
	p.slices[0].Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set", Counters: counters}}
	p.slices[1].Spec.Devices = devices
	return p
}

func TestPoolFaults(t *testing.T) {
	t.Parallel()
	attribute := func(name string, a resourceapi.DeviceAttribute) func(*pool) {
		return func(p *pool) {
			p.slices[1].Spec.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{resourceapi.QualifiedName(name): a}
		}
	}
	long := strings.Repeat("x", 65)
	yes := resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
	change := func(f func(*resourceapi.Device)) func(*pool) {
		return func(p *pool) { f(&p.slices[1].Spec.Devices[0]) }
	}
	// The devices consume the same map.
	oneMore := func(p *pool) { p.slices[0].Spec.SharedCounters[0].Counters["one-more"] = resourceapi.Counter{} }
	for want, change := range map[string]func(*pool){
		"": func(*pool) {},
		"slices of its newest generation, they say 2": func(p *pool) { p.slices = p.slices[1:] },
		"says that the pool has 3 slices":             func(p *pool) { p.slices[1].Spec.Pool.ResourceSliceCount = 3 },
		"64 characters of driver name":                func(p *pool) { p.slices[0].Spec.Driver = strings.Repeat("x", 64) },
		"pool name: a lowercase RFC 1123 subdomain":   func(p *pool) { p.slices[0].Spec.Pool.Name = "Node/a" },
		"2 of nodeName":                               func(p *pool) { p.slices[0].Spec.AllNodes = ptr.To(true) },
		"0 of nodeName":                               func(p *pool) { p.slices[0].Spec.NodeName = nil },
		"65 devices where one has taints": func(p *pool) {
			p.slices[1].Spec.Devices = append(p.slices[1].Spec.Devices, resourceapi.Device{Name: "more"})
		},
		"129 devices, want at most 128": func(p *pool) {
			p.slices[1].Spec.Devices = nil
			for i := range 129 {
				p.slices[1].Spec.Devices = append(p.slices[1].Spec.Devices, resourceapi.Device{Name: fmt.Sprint("d", i)})
			}
		},
		"slices of their own":                     func(p *pool) { p.slices[0].Spec.Devices = []resourceapi.Device{{Name: "more"}} },
		"9 counter sets":                          func(p *pool) { p.slices[0].Spec.SharedCounters = make([]resourceapi.CounterSet, 9) },
		"is in slice devices too":                 change(func(d *resourceapi.Device) { d.Name = "dev-1" }),
		"device Dev: name: a lowercase":           change(func(d *resourceapi.Device) { d.Name = "Dev" }),
		"17 taints":                               change(func(d *resourceapi.Device) { d.Taints = make([]resourceapi.DeviceTaint, 17) }),
		"5 binding conditions":                    change(func(d *resourceapi.Device) { d.BindingConditions = make([]string, 5) }),
		"5 binding failure conditions":            change(func(d *resourceapi.Device) { d.BindingFailureConditions = make([]string, 5) }),
		"consumes counter counter-0 of set other": change(func(d *resourceapi.Device) { d.ConsumesCounters[0].CounterSet = "other" }),
		"3 compatibility groups": change(func(d *resourceapi.Device) {
			d.ConsumesCounters[0].CompatibilityGroups = make([]string, 3)
		}),
		"3 consumed counter sets": change(func(d *resourceapi.Device) {
			d.ConsumesCounters = make([]resourceapi.DeviceCounterConsumption, 3)
		}),
		"49 attribute values": attribute("ints", resourceapi.DeviceAttribute{IntValues: make([]int64, 49)}),
		"33 attributes and capacities": change(func(d *resourceapi.Device) {
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
			for i := range 29 {
				d.Capacity[resourceapi.QualifiedName(fmt.Sprint("c", i))] = resourceapi.DeviceCapacity{}
			}
		}),
		"want exactly one":                         attribute("two", resourceapi.DeviceAttribute{BoolValue: yes.BoolValue, StringValue: &long}),
		"65 characters in attribute long":          attribute("long", resourceapi.DeviceAttribute{StringValue: &long}),
		"65 characters in attribute texts":         attribute("texts", resourceapi.DeviceAttribute{StringValues: []string{long}}),
		"33 characters in the identifier of":       attribute(strings.Repeat("x", 33), yes),
		"64 characters in the domain of":           attribute(strings.Repeat("x", 60)+".com/a", yes),
		`"a-b" is no C identifier`:                 attribute("a-b", yes),
		"name Example.com/a: a lowercase RFC 1123": attribute("Example.com/a", yes),
		"33 counters in set set, want at most 32":  oneMore, "33 counters of set set, want at most 32": oneMore,
	} {
		p := goodPool()
		change(&p)
		err := poolFaults(p)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

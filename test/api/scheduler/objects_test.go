// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/test/objects"
)

// driver publishes all devices but those that say otherwise.
const driver = "gpu.example.com"

// cat makes one list of objects and lists of objects.
func cat(parts ...any) []client.Object {
	var out []client.Object
	for _, part := range parts {
		switch part := part.(type) {
		case client.Object:
			out = append(out, part)
		case []client.Object:
			out = append(out, part...)
		default:
			panic(fmt.Sprintf("%T is no object", part))
		}
	}
	return out
}

// on is a node and a slice with its devices.
func on(name string, devices ...resourceapi.Device) []client.Object {
	return cat(node(name), slice(name, devices...))
}

// node is ready and has room. Labels are pairs of key and value.
func node(name string, labels ...string) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for pair := range slices.Chunk(labels, 2) {
		n.Labels[pair[0]] = pair[1]
	}
	return n
}

// slice is the only one of a pool, whose name is that of its node.
func slice(name string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: ptr.To(name), Devices: devices,
			Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		},
	}
}

// part is one of several slices of the pool of a node.
func part(name, node string, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := slice(node, devices...)
	s.Name = name
	s.Spec.Pool.ResourceSliceCount = count
	return s
}

// anywhere is a pool of devices that every node reaches.
func anywhere(name string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := slice(name, devices...)
	s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
	return s
}

// labelled is a pool of devices that nodes with a label reach.
func labelled(name, key, value string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := slice(name, devices...)
	s.Spec.NodeName, s.Spec.NodeSelector = nil, nodesWith(key, value)
	return s
}

// perDevice is a pool whose devices say themselves which node reaches them.
func perDevice(name string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := slice(name, devices...)
	s.Spec.NodeName, s.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
	return s
}

func nodesWith(key, value string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
	}}}
}

// gpu is a device. Its attributes are pairs of name and value.
func gpu(name string, pairs ...any) resourceapi.Device {
	return resourceapi.Device{Name: name, Attributes: attributes(pairs...)}
}

// gpus are devices g0, g1 and so on with the same attributes.
func gpus(n int, pairs ...any) []resourceapi.Device {
	out := make([]resourceapi.Device, 0, n)
	for i := range n {
		out = append(out, gpu(fmt.Sprintf("g%d", i), pairs...))
	}
	return out
}

func attributes(pairs ...any) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for pair := range slices.Chunk(pairs, 2) {
		name := resourceapi.QualifiedName(fmt.Sprint(pair[0]))
		switch value := pair[1].(type) {
		case int:
			out[name] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(value))}
		case bool:
			out[name] = resourceapi.DeviceAttribute{BoolValue: &value}
		case version:
			out[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(string(value))}
		default:
			out[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprint(value))}
		}
	}
	return out
}

// version is an attribute that is a semantic version.
type version string

// memory gives a device a capacity.
func memory(d resourceapi.Device, value string) resourceapi.Device {
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(value)}}
	return d
}

// shared lets several claims have a device. policy may be nil.
func shared(d resourceapi.Device, value string, policy *resourceapi.CapacityRequestPolicy) resourceapi.Device {
	d.AllowMultipleAllocations = ptr.To(true)
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		"memory": {Value: resource.MustParse(value), RequestPolicy: policy},
	}
	return d
}

// tainted gives a device a taint.
func tainted(d resourceapi.Device, key string, effect resourceapi.DeviceTaintEffect) resourceapi.Device {
	d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Effect: effect})
	return d
}

// consuming has a device take an amount of a counter named memory.
func consuming(d resourceapi.Device, set, amount string) resourceapi.Device {
	d.ConsumesCounters = append(d.ConsumesCounters, resourceapi.DeviceCounterConsumption{
		CounterSet: set, Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(amount)}},
	})
	return d
}

// counters is the slice of a pool that has its counters.
func counters(name, node string, count int64, set, amount string) *resourceapi.ResourceSlice {
	s := part(name, node, count)
	s.Spec.SharedCounters = []resourceapi.CounterSet{
		{Name: set, Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(amount)}}},
	}
	return s
}

// class has one selector, or takes every device of the driver.
func class(name string, selectors ...string) *resourceapi.DeviceClass {
	if len(selectors) == 0 {
		selectors = []string{`device.driver == "` + driver + `"`}
	}
	return objects.Class(name, selectors...)
}

// rule taints the devices of a pool; an empty device means all.
func rule(name, pool, device string) *resourceapi.DeviceTaintRule {
	selector := &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To(pool)}
	if device != "" {
		selector.Device = &device
	}
	return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: selector, Taint: resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
}

// quota limits how many devices of a class the claims of the namespace may ask for.
func quota(class, most string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourceName(class + ".deviceclass.resource.k8s.io/devices"): resource.MustParse(most)},
	}}
}

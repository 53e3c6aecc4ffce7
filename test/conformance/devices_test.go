// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// slice is one of a pool of the node, of a generation that has count slices.
func slice(name, pool string, generation, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: fakeDriver, NodeName: ptr.To(fakeNode), Devices: devices,
		Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count},
	}}
}

// part is a device that takes of its pool's counter.
func part(name, amount string) resourceapi.Device {
	return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
		CounterSet: "gpu", Counters: map[string]resourceapi.Counter{"slots": {Value: resource.MustParse(amount)}},
	}}}
}

func allocatedClaim(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
	}}
}

func held(driver, pool, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: pool, Device: name}
}

// sharedDevice allows several allocations of at least some memory.
func sharedDevice(name, memory, least string) resourceapi.Device {
	d := resourceapi.Device{Name: name}
	shareable(&d)
	c := d.Capacity["memory"]
	c.Value, c.RequestPolicy.ValidRange.Min = resource.MustParse(memory), ptr.To(resource.MustParse(least))
	d.Capacity["memory"] = c
	return d
}

func TestLeastOf(t *testing.T) {
	t.Parallel()
	one, two := ptr.To(resource.MustParse("1")), ptr.To(resource.MustParse("2"))
	for want, policy := range map[string]*resourceapi.CapacityRequestPolicy{
		"4": nil,
		"1": {ValidValues: []resource.Quantity{*one, *two}, Default: two},
		"2": {Default: two},
		"8": {},
		"0": {ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0"))}, Default: two},
	} {
		got := leastOf(resourceapi.DeviceCapacity{Value: resource.MustParse("8"), RequestPolicy: policy})
		if got.String() != want {
			t.Errorf("%+v: %s, want %s", policy, got.String(), want)
		}
	}
}

func TestFreeDevices(t *testing.T) {
	t.Parallel()
	counters := slice("p-counters", "parts", 1, 2)
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu", Counters: map[string]resourceapi.Counter{
		"slots": {Value: resource.MustParse("7")},
	}}}
	elsewhere := slice("elsewhere", "elsewhere", 1, 1, resourceapi.Device{Name: "there"})
	elsewhere.Spec.NodeName = ptr.To("node-2")
	foreign := slice("foreign", "foreign", 1, 1, resourceapi.Device{Name: "theirs"})
	foreign.Spec.Driver = "other.example.com"
	network := slice("network", "network", 1, 1,
		resourceapi.Device{Name: "everywhere", AllNodes: ptr.To(true)}, resourceapi.Device{Name: "here", NodeName: ptr.To(fakeNode)},
		resourceapi.Device{Name: "not-here", NodeName: ptr.To("node-2")})
	network.Spec.NodeName, network.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
	kube := fake.NewClientset([]runtime.Object{
		slice("old", "whole", 1, 1, resourceapi.Device{Name: "gone"}),
		slice("new", "whole", 2, 1,
			resourceapi.Device{Name: "free"}, resourceapi.Device{Name: "taken"}, resourceapi.Device{Name: "looked-at"},
			resourceapi.Device{Name: "tainted", Taints: []resourceapi.DeviceTaint{{Key: "a", Effect: resourceapi.DeviceTaintEffectNoSchedule}}},
			resourceapi.Device{Name: "noted", Taints: []resourceapi.DeviceTaint{{Key: "a", Effect: resourceapi.DeviceTaintEffectNone}}},
			sharedDevice("shared", "4Gi", "1Gi"), sharedDevice("narrow", "4Gi", "3Gi"),
			resourceapi.Device{Name: "bound", BindingConditions: []string{"ready"}},
			resourceapi.Device{Name: "unwanted"}),
		counters, slice("p-devices", "parts", 1, 2, part("used", "3"), part("half", "4"), part("small", "1"), resourceapi.Device{Name: "plain"}),
		elsewhere, foreign, network,
		allocatedClaim("a", held(fakeDriver, "whole", "taken"), held("other.example.com", "whole", "free"), held(fakeDriver, "parts", "used")),
		allocatedClaim("b", resourceapi.DeviceRequestAllocationResult{
			Driver: fakeDriver, Pool: "whole", Device: "looked-at",
			AdminAccess: ptr.To(true),
		}),
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pending"}},
	}...)
	s := &session{node: fakeNode, config: &Config{Kube: kube, Driver: fakeDriver, Devices: regexp.MustCompile("/[^u]")}}
	free, shared, err := s.freeDevices(t.Context())
	must(t, err)
	if diff := cmp.Diff([]device{{"whole", "shared"}}, shared, cmp.AllowUnexported(device{})); diff != "" {
		t.Errorf("devices for several claims (-want +got):\n%s", diff)
	}
	if amount := s.shares[device{"whole", "shared"}]["memory"]; amount.String() != "1Gi" {
		t.Errorf("a share has %s of the memory, want the least, 1Gi", amount.String())
	}
	var got []string
	for _, d := range free {
		got = append(got, d.String())
	}
	want := []string{"network/everywhere", "network/here", "parts/half", "parts/plain", "whole/free", "whole/looked-at", "whole/noted"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("free devices (-want +got):\n%s", diff)
	}
}

func TestFindNode(t *testing.T) {
	t.Parallel()
	for want, nodes := range map[string][]string{"node-1": {"node-1", "node-1"}, "error: 2 nodes": {"node-1", "node-2"}, "error: none": {}} {
		var objects []runtime.Object
		for i, name := range nodes {
			s := slice(fmt.Sprint("slice-", i), name, 1, 1)
			s.Spec.NodeName = ptr.To(name)
			objects = append(objects, s)
		}
		s := &session{config: &Config{Kube: fake.NewClientset(objects...), Driver: fakeDriver}}
		got, err := s.findNode(t.Context())
		if (err == nil) != (want == "node-1") || err == nil && got != want {
			t.Errorf("slices for %v: node %q, error %v, want %s", nodes, got, err, want)
		}
	}
}

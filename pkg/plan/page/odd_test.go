// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/page"
)

// units are so many devices that each take one of a card's only counter.
func units(card, counter string, total, published int) (resourceapi.CounterSet, []resourceapi.Device) {
	all := resourceapi.Counter{Value: *resource.NewQuantity(int64(total), "")}
	set := resourceapi.CounterSet{Name: card, Counters: map[string]resourceapi.Counter{counter: all}}
	var devices []resourceapi.Device
	for i := range published {
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("%s-%d", card, i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: new("vf")}, "resource.kubernetes.io/numaNode": {IntValue: new(int64(1))},
			},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
				CounterSet: card, Counters: map[string]resourceapi.Counter{counter: {Value: *resource.NewQuantity(1, "")}},
			}},
		})
	}
	return set, devices
}

// odd has what is rare: names as long as they may be, cards of other drivers without places for their parts, a pool of which slices are
// missing, devices of no single node, shared ones, administrators, claims without pods, and a node that takes no pods.
func odd(t testing.TB) page.Input {
	t.Helper()
	long := strings.Repeat("abcdefghi0", 6)
	few, fewParts := units("card-a", "virtual-functions", 7, 7)
	many, manyParts := units("card-b", "virtual-functions", 63, 24)
	fewParts[3].Taints = []resourceapi.DeviceTaint{{Key: "example.com/" + long, Effect: "NoExecute"}}
	pool := func(driver, name string, nodeName *string, missing int64, devices []resourceapi.Device, sets ...resourceapi.CounterSet) (
		*resourceapi.ResourceSlice, *resourceapi.ResourceSlice,
	) {
		counted, listed := &resourceapi.ResourceSlice{}, &resourceapi.ResourceSlice{}
		counted.Name, listed.Name = name+"-0", name+"-1"
		counted.Spec = resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: nodeName, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 2 + missing},
		}
		listed.Spec = counted.Spec
		counted.Spec.SharedCounters, listed.Spec.Devices = sets, devices
		return counted, listed
	}
	in := page.Input{Title: "Why pod " + long + "/" + long + " waits", Lead: "Nothing of " + long + long + " is free."}
	in.Nodes = nodes("node-1", long)
	in.Nodes[1].Spec.Unschedulable = true
	in.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "example.com/" + long, Value: long, Effect: corev1.TaintEffectNoSchedule}}
	add := func(a, b *resourceapi.ResourceSlice) { in.Slices = append(in.Slices, a, b) }
	add(pool("other.example", long, &long, 0, append(fewParts, manyParts...), few, many))
	add(pool("fabric.example", "fabric", nil, 0, []resourceapi.Device{{Name: "switch"}}))
	add(pool("fabric.example", "half", new("node-1"), 3, []resourceapi.Device{{Name: long}}))
	one := resourceapi.DeviceCapacity{
		Value: resource.MustParse("4"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: new(resource.MustParse("1")), ValidValues: []resource.Quantity{resource.MustParse("1")},
		},
	}
	memory := resourceapi.DeviceCapacity{
		Value: resource.MustParse("80Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: new(resource.MustParse("20Gi")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("1Gi"))},
		},
	}
	add(pool("shared.example", "shared", new("node-1"), 0, []resourceapi.Device{{
		Name: "shared-gpu", AllowMultipleAllocations: new(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"shares": one, "memory": memory},
	}}))
	has := func(driver, pool, name string, pods []string, devices ...string) *resourceapi.ResourceClaim {
		c := claim("", name, pods, devices...)
		for i := range c.Status.Allocation.Devices.Results {
			c.Status.Allocation.Devices.Results[i].Driver, c.Status.Allocation.Devices.Results[i].Pool = driver, pool
		}
		return c
	}
	for i := range 30 {
		in.Claims = append(in.Claims, has("fabric.example", "fabric", fmt.Sprintf("share-%02d", i), nil, "switch"))
	}
	for i, size := range []string{"20Gi", "10Gi"} {
		c := has("shared.example", "shared", fmt.Sprintf("share-of-memory-%d", i), []string{fmt.Sprintf("uses-%d", i)}, "shared-gpu")
		result := &c.Status.Allocation.Devices.Results[0]
		result.ShareID = new(types.UID(fmt.Sprint(i)))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			"shares": resource.MustParse("1"), "memory": resource.MustParse(size),
		}
		in.Claims = append(in.Claims, c)
	}
	looks := has("other.example", long, "looks", []string{"admin"}, "card-a-1")
	looks.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	in.Claims = append(in.Claims, looks,
		has("other.example", long, long+long+long, []string{long + long, long}, "card-a-0"),
		has("other.example", long, "vf-4", []string{"vf-4"}, "card-a-4"),
		has("other.example", long, "vf-b", []string{"vf-b"}, "card-b-0", "card-b-7"),
		has("other.example", long, "gone", []string{"gone"}, "card-z"))
	in.Said = []page.Saying{{From: "PodScheduled", Words: "0/2 nodes are available: " + long + long, Meanings: []string{long + long, "wait"}}}
	in.Why = &page.Why{
		Nodes: map[string][]string{
			long: {"node(s) were unschedulable"}, "node-1": {"does not fit", strings.Repeat("why ", 60) + long + long},
			"a": {"not tried"}, "b": {"not tried"}, "c": {"not tried"}, "d": {"not tried"}, "e": {"not tried"},
		},
		Devices: map[string]page.Judged{
			"other.example/" + long + "/card-a-3": {Matches: true, Failed: []page.Check{{Name: "taint", Message: long + long}}},
			"fabric.example/fabric/switch":        {Matches: true, Failed: []page.Check{{Name: "capacity", Message: "needs 10, 0 is left"}}},
		},
	}
	in.Pods = map[string]plan.PodResult{long + "/" + long: {Reason: "0/2 nodes are available: " + long + long + "."}}
	return in
}

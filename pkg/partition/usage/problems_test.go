// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// TestProblems: what the scheduler does with slices and claims that do not go together.
func TestProblems(t *testing.T) {
	objects := published(t, partition.FormSeparate, divided(t, "a"))
	older := objects[1].DeepCopy()
	older.Name, older.Spec.Pool.Generation = "0-old", 2
	older.Spec.Devices = older.Spec.Devices[:1]
	older.Spec.Devices[0].Name = "gone"
	foreign := objects[1].DeepCopy()
	foreign.Name, foreign.Spec.Driver = "foreign", "gpu.example.com"
	otherDriver := claim("other-driver", "a-mig-1g-6gb-s0")
	otherDriver.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
	admin := claim("admin", "a")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	shares := claim("shares", "a-vfio", "a-vfio")
	for _, tc := range []struct {
		name     string
		slices   []*resourceapi.ResourceSlice
		claims   []*resourceapi.ResourceClaim
		node     string
		unknown  bool
		devices  int
		states   string // of the whole device and of the first instance
		problems []string
	}{
		{name: "free", slices: objects, devices: 9, states: "Free Free"},
		{name: "an older generation", slices: append(objects[:2:2], older), devices: 9, states: "Free Free"},
		{
			name: "another driver's", slices: append(objects[:2:2], foreign), claims: []*resourceapi.ResourceClaim{otherDriver}, devices: 9,
			states: "Free Free",
		},
		{name: "unknown claims", slices: objects, unknown: true, devices: 9, states: "Unknown Unknown"},
		{name: "admin access takes nothing", slices: objects, claims: []*resourceapi.ResourceClaim{admin}, devices: 9, states: "Free Free"},
		{name: "shares take once", slices: objects, claims: []*resourceapi.ResourceClaim{shares}, devices: 9, states: "Taken Taken"},
		{name: "the node", slices: objects, node: node, devices: 9, states: "Free Free"},
		{name: "another node", slices: objects, node: "node-2", claims: []*resourceapi.ResourceClaim{claim("c", "a")}},
		{
			name: "slices are missing", slices: objects[1:], claims: []*resourceapi.ResourceClaim{claim("c", "gone")}, devices: 9,
			states:   "Unknown Unknown",
			problems: []string{"node-1/gpu IncompletePool"},
		},
		{
			name: "held and not published", slices: objects, claims: []*resourceapi.ResourceClaim{claim("c", "a-mig-8g")}, devices: 9,
			states: "Free Free", problems: []string{"team/c NotPublished"},
		},
		{
			name: "held twice", slices: objects, claims: []*resourceapi.ResourceClaim{claim("c", "a"), claim("d", "a-mig-1g-6gb-s0")}, devices: 9,
			states: "Held Held", problems: []string{"node-1/gpu a Overcommitted"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := usage.Of(usage.Objects{Driver: driver, Node: tc.node, Slices: tc.slices, Claims: tc.claims, ClaimsUnknown: tc.unknown})
			if len(got.Devices) != tc.devices {
				t.Fatalf("%d devices, want %d", len(got.Devices), tc.devices)
			}
			var problems []string
			for _, p := range got.Problems {
				problems = append(problems, p.Subject+" "+p.Reason)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if tc.devices == 0 {
				return
			}
			if got := fmt.Sprint(got.Devices[0].State, " ", got.Devices[1].State); got != tc.states {
				t.Errorf("got %s, want %s", got, tc.states)
			}
			for _, c := range got.Cards {
				for name, left := range c.Left {
					if left.Value.Sign() < 0 {
						t.Errorf("less than nothing is left of %s", name)
					}
				}
			}
		})
	}
}

// TestGroups: without counters, parts stand with their GPU by the uuid or PCI address that they name. Nothing is read from names.
func TestGroups(t *testing.T) {
	of := func(name, kind string, more map[resourceapi.QualifiedName]string) resourceapi.Device {
		d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		d.Attributes[device.AttributeType] = text(t, kind)
		for k, v := range more {
			d.Attributes[k] = text(t, v)
		}
		return d
	}
	const uuid, parent, pci = device.AttributeUUID, device.AttributeParentUUID, device.AttributePCIAddress
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: new(node), Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{
			of("m1", "mig", map[resourceapi.QualifiedName]string{parent: "GPU-1", pci: "0000:01:00.0", uuid: "MIG-1"}),
			of("p1", "partition", map[resourceapi.QualifiedName]string{pci: "0000:02:00.0"}),
			of("v1", "vf", map[resourceapi.QualifiedName]string{parent: "GPU-3", pci: "0000:03:00.1"}),
			of("v2", "vf", map[resourceapi.QualifiedName]string{pci: "0000:04:00.1"}),
			of("g3", "gpu", map[resourceapi.QualifiedName]string{uuid: "GPU-3", pci: "0000:03:00.0"}),
			of("m2", "mig", map[resourceapi.QualifiedName]string{parent: "GPU-1", pci: "0000:01:00.0", uuid: "MIG-2"}),
			of("p2", "partition", map[resourceapi.QualifiedName]string{pci: "0000:02:00.0"}),
			of("g5", "gpu", map[resourceapi.QualifiedName]string{pci: "0000:05:00.0"}),
			of("p5", "partition", map[resourceapi.QualifiedName]string{pci: "0000:05:00.0"}),
			of("alone", "host", nil),
			of("m6", "mig", nil),
		},
	}}
	got := lines(usage.Of(usage.Objects{Driver: driver, Slices: []*resourceapi.ResourceSlice{s}}))
	want := []string{
		"0000:02:00.0: p1 Free", "0000:02:00.0: p2 Free",
		"GPU-1: m1 Free", "GPU-1: m2 Free",
		"alone: alone Free",
		"g3: g3 Free", "g3: v1 Free",
		"g5: g5 Free", "g5: p5 Free",
		"m6: m6 Free",
		"v2: v2 Free",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

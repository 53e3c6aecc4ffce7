// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/fettle-dev/fettle/pkg/plan/alike"
	"github.com/fettle-dev/fettle/pkg/selector"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// twins are two nodes with a device each, which differ by their names, a serial number and how often they were published.
func twins() Snapshot {
	s := Snapshot{Classes: []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}}}
	for n := range 2 {
		name := fmt.Sprintf("n%d", n)
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		slice.Spec = resourceapi.ResourceSliceSpec{
			Driver: "d.io", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: int64(n), ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "d", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"kind": {StringValue: new("a")}, "serial": {StringValue: &name},
			}}},
		}
		s.Slices = append(s.Slices, slice)
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return s
}

// TestAlike: nodes are alike if nothing differs that the allocator or an expression sees.
func TestAlike(t *testing.T) {
	kind := []string{`device.attributes["d.io"].kind == "a"`}
	for name, test := range map[string]struct {
		change    func(*Snapshot)
		selectors []string
		alike     bool
	}{
		"twins":                   {func(*Snapshot) {}, kind, true},
		"a serial number is read": {func(*Snapshot) {}, []string{`device.attributes["d.io"].serial == "n1"`}, false},
		"everything may be read":  {func(*Snapshot) {}, []string{`device.attributes["d.io"].size() == 2`}, false},
		"another kind":            {func(s *Snapshot) { *s.Slices[0].Spec.Devices[0].Attributes["kind"].StringValue = "b" }, kind, false},
		"another name":            {func(s *Snapshot) { s.Slices[0].Spec.Devices[0].Name = "e" }, kind, false},
		"a device more": {func(s *Snapshot) {
			s.Slices[0].Spec.Devices = append(s.Slices[0].Spec.Devices, resourceapi.Device{Name: "e"})
		}, kind, false},
		"an incomplete pool":        {func(s *Snapshot) { s.Slices[0].Spec.Pool.ResourceSliceCount = 2 }, kind, false},
		"for all nodes":             {func(s *Snapshot) { s.Slices[0].Spec.NodeName, s.Slices[0].Spec.AllNodes = nil, new(true) }, kind, false},
		"another driver":            {func(s *Snapshot) { s.Slices[0].Spec.Driver = "e.io" }, kind, false},
		"another capability of one": {func(s *Snapshot) { s.Nodes[0].Status.DeclaredFeatures = []string{"x"} }, kind, false},
		"a taint": {func(s *Snapshot) {
			s.Slices[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "t", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}, kind, false},
		"an allocated device": {func(s *Snapshot) {
			held := objects.Claim("default", "held", objects.Request("r", "any"))
			held.UID = types.UID("held")
			held.Status.Allocation = &resourceapi.AllocationResult{}
			held.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{objects.Result("r", "d.io", "n0", "d")}
			s.Claims = append(s.Claims, held)
		}, kind, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := twins()
			test.change(&s)
			c, _, err := NewCluster(s)
			check.Must(t, err)
			claim := objects.Claim("default", "c", objects.Request("r", "any", test.selectors...))
			reads := c.reads.of([]*resourceapi.ResourceClaim{claim}, c.Classes)
			a := alike.New[verdict]()
			like := func(i int) (l alike.Likeness, ok bool) {
				l, ok, err := a.Like(c.seen(i), reads)
				check.Must(t, err)
				return l, ok
			}
			first, firstIs := like(0)
			second, secondIs := like(1)
			if got := firstIs && secondIs && first == second; got != test.alike {
				t.Errorf("alike: %t, want %t", got, test.alike)
			}
			a.Remember(first, verdict{fits: true})
			if _, known := a.Known(second); known != (first == second) {
				t.Errorf("what is remembered of the first is taken for the second: %t", known)
			}
		})
	}
}

// TestAllocatedState: likenesses are made of all that the allocator is told to be allocated.
func TestAllocatedState(t *testing.T) {
	if n := reflect.TypeFor[structured.AllocatedState]().NumField(); n != 3 {
		t.Errorf("AllocatedState has %d fields: alike.Nodes.Like knows 3 of them", n)
	}
}

// TestReadingChangesNothing: what the allocator gets is a copy.
func TestReadingChangesNothing(t *testing.T) {
	s := twins()
	var reads selector.Reads
	reads.AddAttribute(new(resourceapi.FullyQualifiedName("d.io/kind")))
	for _, slice := range reading(s.Slices, reads) {
		if d := slice.Spec.Devices[0]; len(d.Attributes) != 1 || d.Attributes["kind"].StringValue == nil {
			t.Errorf("the allocator gets %v", d.Attributes)
		}
	}
	if n := len(s.Slices[0].Spec.Devices[0].Attributes); n != 2 {
		t.Errorf("%d attributes are left of 2", n)
	}
}

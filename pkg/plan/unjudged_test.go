// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestDevicesThatTakeOfTheNode: what devices take of the CPUs and the memory of their node is not counted (KEP-5517). Of a pod that may get
// such a device a plan says so.
func TestDevicesThatTakeOfTheNode(t *testing.T) {
	on := map[string]bool{"DRANodeAllocatableResources": true}
	for name, test := range map[string]struct {
		gates  map[string]bool
		change func(*plan.Snapshot)
		want   bool
	}{
		"the gate is on":       {on, func(*plan.Snapshot) {}, true},
		"the gate is off":      {nil, func(*plan.Snapshot) {}, false},
		"devices take nothing": {on, func(s *plan.Snapshot) { s.Slices[0].Spec.Devices[0].NodeAllocatableResources = nil }, false},
		"the pod asks for no devices": {on, func(s *plan.Snapshot) {
			s.Pods[0].Spec.ResourceClaims = nil
		}, false},
		"they are of another node": {on, func(s *plan.Snapshot) {
			s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
			other := s.Slices[0].DeepCopy()
			other.Name, *other.Spec.NodeName, other.Spec.Pool.Name = "n2", "n2", "n2"
			s.Slices = append(s.Slices, other)
			s.Slices[0].Spec.Devices[0].NodeAllocatableResources = nil
			s.Nodes[1].Spec.Unschedulable = true
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: resourceapi.ResourceSliceSpec{
				Driver: "cpu.io", NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{
					Name: "socket-0", NodeAllocatableResources: map[corev1.ResourceName]resourceapi.NodeAllocatableResource{
						"cpu": {Mapping: &resourceapi.NodeAllocatableMapping{DeviceMultiplier: new(resource.MustParse("8"))}},
					},
				}},
			}}
			s := plan.Snapshot{
				Gates: test.gates, Slices: []*resourceapi.ResourceSlice{slice}, Classes: []*resourceapi.DeviceClass{objects.Class("any")},
				Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
					Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1")},
				}}},
				Claims: []*resourceapi.ResourceClaim{objects.Claim("default", "c", objects.Request("r", "any"))},
				Pods: []*corev1.Pod{{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
					Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}},
				}},
			}
			test.change(&s)
			c, _, err := plan.NewCluster(s)
			check.Must(t, err)
			report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
			check.Must(t, err)
			unjudged := report.Pods["default/p"].Unjudged
			got := slices.ContainsFunc(unjudged, func(field string) bool { return strings.Contains(field, "nodeAllocatableResources") })
			if got != test.want || len(report.Pods["default/p"].Fits) != 1 {
				t.Errorf("unjudged: %q, want that it is said: %t; fits %v", unjudged, test.want, report.Pods["default/p"].Fits)
			}
		})
	}
}

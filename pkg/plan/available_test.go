// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestAllocatedClaims: a pod with a claim that has devices fits where the scheduler lets the claim be used (Filter of its plugin
// dynamicresources).
func TestAllocatedClaims(t *testing.T) {
	skips := func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results[1].SkipNodeOperations = []resourceapi.SkipNodeOperation{"NodePrepareResources"}
	}
	for name, test := range map[string]struct {
		gates  map[string]bool
		change func(*resourceapi.ResourceClaim)
		want   string
	}{
		"devices of the network":        {nil, func(*resourceapi.ResourceClaim) {}, "[n1 n2]"},
		"kubelet is to do without them": {map[string]bool{"DRAOptionalNodeOperations": true}, skips, "[n1]"},
		"no kubelet can":                {nil, skips, "[n1 n2]"}, // the API server dropped it
		"no device was seen to fail":    {nil, func(c *resourceapi.ResourceClaim) { bind(c, "", "") }, "[n1 n2]"},
		"the first failed":              {nil, func(c *resourceapi.ResourceClaim) { bind(c, "failed", "") }, "[]"},
		"the second failed":             {nil, func(c *resourceapi.ResourceClaim) { bind(c, "ready", "failed") }, "[]"},
		"the first is waited for":       {nil, func(c *resourceapi.ResourceClaim) { bind(c, "other", "failed") }, "[n1 n2]"},
		"the first has said nothing":    {nil, func(c *resourceapi.ResourceClaim) { bind(c, "", "failed") }, "[n1 n2]"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := objects.Claim("default", "c", objects.Request("r", "any"))
			claim.Status.Allocation = objects.Allocation(objects.Result("r", "d.io", "net", "d0"), objects.Result("r", "d.io", "net", "d1"))
			claim.Status.Allocation.AllocationTimestamp = new(metav1.Now())
			test.change(claim)
			c, _, err := plan.NewCluster(plan.Snapshot{
				Gates: test.gates, Claims: []*resourceapi.ResourceClaim{claim}, Classes: []*resourceapi.DeviceClass{objects.Class("any")},
				Nodes: []*corev1.Node{
					{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{DeclaredFeatures: []string{"DRAOptionalNodeOperations"}}},
					{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
				},
				Pods: []*corev1.Pod{{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
					Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}},
				}},
			})
			check.Must(t, err)
			report, err := plan.Run(t.Context(), c, c.Pending(), plan.Options{})
			check.Must(t, err)
			if got := fmt.Sprint(report.Pods["default/p"].Fits); got != test.want {
				t.Errorf("fits %s, want %s: %s", got, test.want, report.Pods["default/p"].Reason)
			}
		})
	}
}

// bind has the devices of a claim wait for their drivers, which have set these conditions.
func bind(claim *resourceapi.ResourceClaim, set ...string) {
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		r.BindingConditions, r.BindingFailureConditions = []string{"ready"}, []string{"failed"}
		if set[i] == "" {
			continue
		}
		claim.Status.Devices = append(claim.Status.Devices, resourceapi.AllocatedDeviceStatus{
			Driver: r.Driver, Pool: r.Pool, Device: r.Device, Conditions: []metav1.Condition{{Type: set[i], Status: metav1.ConditionTrue}},
		})
	}
}

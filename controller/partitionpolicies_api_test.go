// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/check"
)

// testPartitionPolicies: the status of policies follows what they say, which nodes they select, and what these report.
func (c cluster) testPartitionPolicies(t *testing.T) {
	apitest.Eventually(t, func() string { return errorText(c.client.List(t.Context(), &v1alpha1.PartitionPolicyList{})) })
	high, low := poolPolicy("api-high", 10), poolPolicy("api-low", 1)
	c.create(t, high)
	c.awaitPartitions(t, high, "True Valid", "Unknown NoNodes", "False NotOverruled", 0, 0, 0)

	first, second := c.accelerator(t, "parts-a", "", true), c.accelerator(t, "parts-b", "", true)
	c.label(t, first.Name, "parts")
	c.awaitPartitions(t, high, "True Valid", "Unknown NotSeen", "False NotOverruled", 0, 0, 1)
	c.reports(t, first, v1alpha1.NodePartitionPolicy{Name: high.Name, Generation: 1, Devices: 8})
	c.awaitPartitions(t, high, "True Valid", "True Applied", "False NotOverruled", 1, 8, 0)

	c.label(t, second.Name, "parts")
	c.create(t, low)
	c.awaitPartitions(t, low, "True Valid", "Unknown NotSeen", "False NotOverruled", 0, 0, 2)
	c.reports(t, first, v1alpha1.NodePartitionPolicy{Name: high.Name, Generation: 1, Devices: 8},
		v1alpha1.NodePartitionPolicy{Name: low.Name, Generation: 1, Overruled: 8, By: high.Name})
	c.reports(t, second, v1alpha1.NodePartitionPolicy{
		Name: high.Name, Generation: 1, Devices: 4, Waiting: 2, Reason: "InUse", Message: "claim a/b has nvidia-0000-41-00-0",
	}, v1alpha1.NodePartitionPolicy{Name: low.Name, Generation: 1, Overruled: 4, By: high.Name})
	c.awaitPartitions(t, high, "True Valid", "False InUse", "False NotOverruled", 2, 12, 1)
	c.awaitPartitions(t, low, "True Valid", "Unknown NoDevices", "True Overruled", 0, 0, 0)
	if w := high.Status.Waiting; len(w) != 1 || w[0].Node != second.Name || w[0].Devices != 2 || w[0].Message == "" {
		t.Errorf("waiting are %+v", w)
	}
	c.wantRow(t, "partitionpolicies/"+high.Name, map[string]string{
		"Priority": "10", "MIG": "Dynamic", "AMD": "<nil>", "VFs": "<nil>", "VFIO": "true", "Devices": "12", "Waiting": "1", "Valid": "True",
		"Why": "node parts-b, 2 devices: claim a/b has nvidia-0000-41-00-0",
	})

	settled := high.ResourceVersion
	c.update(t, high, func() {
		high.Spec.Devices.DeviceSelector = &v1alpha1.PartitionDeviceSelector{CEL: `device.attributes["fettle.dev"].vendor ==`}
	})
	c.awaitPartitions(t, high, "False Invalid", "False NotValid", "False NotOverruled", 2, 12, 2)
	apitest.Eventually(t, func() string { return c.missingEvent(high.Name, "Invalid") })
	if high.ResourceVersion == settled {
		t.Error("the policy is the one before")
	}
	c.wantRow(t, "partitionpolicies/"+high.Name, map[string]string{"Valid": "False", "Waiting": "2"})

	check.Must(t, c.client.Delete(t.Context(), second))
	c.label(t, first.Name, "elsewhere")
	c.reports(t, first)
	c.awaitPartitions(t, low, "True Valid", "Unknown NoNodes", "False NotOverruled", 0, 0, 0)
}

func poolPolicy(name string, priority int32) *v1alpha1.PartitionPolicy {
	p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "parts"}}
	p.Spec.Priority = priority
	p.Spec.Devices.NVIDIA = &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{Mode: v1alpha1.MIGDynamic}}
	p.Spec.Devices.Passthrough = new(true)
	return p
}

// label puts a Node into a pool.
func (c cluster) label(t *testing.T, name, pool string) {
	t.Helper()
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pool":%q}}}`, pool)
	check.Must(t, c.client.Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", patch)))
}

// reports has a node report of policies.
func (c cluster) reports(t *testing.T, node *v1alpha1.AcceleratorNode, policies ...v1alpha1.NodePartitionPolicy) {
	t.Helper()
	before := node.DeepCopy()
	node.Status.SetPartitionPolicies(policies)
	check.Must(t, c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)))
}

// awaitPartitions waits until the conditions are of this generation and as wanted, and the counts too.
func (c cluster) awaitPartitions(
	t *testing.T, p *v1alpha1.PartitionPolicy, valid, applied, overruled string, nodes, devices, waiting int32,
) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err.Error()
		}
		for kind, want := range map[string]string{
			v1alpha1.ConditionValid: valid, v1alpha1.ConditionApplied: applied, v1alpha1.ConditionOverruled: overruled,
		} {
			got := meta.FindStatusCondition(p.Status.Conditions, kind)
			if got == nil || got.ObservedGeneration != p.Generation || string(got.Status)+" "+got.Reason != want {
				return fmt.Sprintf("%s of %s is %+v, want %s", kind, p.Name, got, want)
			}
		}
		got, want := [3]int32{p.Status.Nodes, p.Status.Devices, p.Status.WaitingNodes}, [3]int32{nodes, devices, waiting}
		if got != want || p.Status.ObservedGeneration != p.Generation {
			return fmt.Sprintf("nodes, devices and waiting nodes of %s are %v, want %v", p.Name, got, want)
		}
		return ""
	})
}

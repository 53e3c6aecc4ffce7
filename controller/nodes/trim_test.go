// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// TestTrim: the cache has of an AcceleratorNode only what is counted.
func TestTrim(t *testing.T) {
	node := &v1alpha1.AcceleratorNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.AcceleratorNodeStatus{Bitstreams: []string{"a"}},
	}
	node.ResourceVersion, node.UID, node.Labels = "7", "u", map[string]string{"a": "b"}
	node.Status.PluginVersion, node.Status.PreparedClaims = "v1", 3
	node.Status.Checks = []v1alpha1.NodeCheck{{DeviceClassName: "c"}}
	node.Status.Facts = &v1alpha1.NodeFacts{BootID: "b"}
	node.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	node.Status.SetProblems([]v1alpha1.NodeProblem{{Reason: "BoundToVFIO"}, {Reason: "Invalid"}, {Reason: "DriverNotLoaded"}})
	node.Status.Summary = &v1alpha1.NodeSummary{GPUs: "1", Drivers: "nvidia 1", Models: "H100"}
	node.Status.Vendors = []v1alpha1.VendorStatus{{Name: "nvidia", Devices: 1}}
	node.Status.Presets = []v1alpha1.NodePreset{{Name: "p", Claims: 1}}
	node.Status.KernelCaches = []v1alpha1.NodeCache{{Name: "c", Claims: 1}}
	node.Status.PartitionPolicies = []v1alpha1.NodePartitionPolicy{{Name: "p", Devices: 1}}
	node.Status.Pools = []v1alpha1.PoolStatus{{Name: "n1/gpu", Kind: "gpu", Devices: 2, Withheld: 1, Generation: 7, Published: &metav1.Time{}}}
	want := &v1alpha1.AcceleratorNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.AcceleratorNodeStatus{Bitstreams: []string{"a"}},
	}
	want.Status.Vendors, want.Status.Presets = node.Status.Vendors, node.Status.Presets
	want.Status.KernelCaches, want.Status.PartitionPolicies = node.Status.KernelCaches, node.Status.PartitionPolicies
	want.Status.Pools = []v1alpha1.PoolStatus{{Name: "n1/gpu", Kind: "gpu", Devices: 2, Withheld: 1}}
	want.Status.PluginVersion, want.Status.Facts, want.Status.Conditions = "v1", node.Status.Facts, node.Status.Conditions
	want.Status.Checks = node.Status.Checks
	want.Status.Problems = []v1alpha1.NodeProblem{{Reason: "BoundToVFIO"}, {Reason: "DriverNotLoaded"}}
	want.Status.ProblemCount, want.Status.Summary = 3, &v1alpha1.NodeSummary{Drivers: "nvidia 1", Models: "H100"}
	want.ResourceVersion, want.UID = "7", "u"
	got, err := Trim(node)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, kept (-want +got):\n%s", err, diff)
	}
	other := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	kept, err := Trim(other)
	if o, ok := kept.(*metav1.PartialObjectMetadata); err != nil || !ok || o.Annotations["a"] != "b" || o.ManagedFields != nil {
		t.Errorf("kept %+v of another object (%v)", kept, err)
	}
}

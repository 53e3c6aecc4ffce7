// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// TestFeatures: what the allocator may do by default, by version.
func TestFeatures(t *testing.T) {
	stable := structured.Features{AdminAccess: true, PrioritizedList: true}
	incubating := structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
		ConsumableCapacity: true,
	}
	withTaints := stable
	withTaints.DeviceTaints = true
	fractional := incubating
	fractional.FractionalCapacityRange = true
	everything := fractional
	everything.ListTypeAttributes, everything.DerivedAttributes, everything.CompatibilityGroups = true, true, true
	everything.OptionalNodeOperations = true
	for _, tc := range []struct {
		version string
		given   map[string]bool
		want    structured.Features
		changed map[string]bool
	}{
		{version: "1.34", want: stable},
		{version: "v1.35.2", want: stable},
		{version: "v1.36.1+k3s1", want: incubating},
		{version: "1.37", want: incubating},
		{want: incubating},
		{version: "1.35", given: map[string]bool{DeviceTaints: true}, want: withTaints, changed: map[string]bool{DeviceTaints: true}},
		{
			version: "1.37", given: map[string]bool{FractionalCapacityRange: true}, want: fractional,
			changed: map[string]bool{FractionalCapacityRange: true},
		},
		{version: "1.37", given: map[string]bool{"AllAlpha": true, FractionalCapacityRange: true}, want: everything, changed: map[string]bool{
			FractionalCapacityRange: true, DerivedAttributes: true, CompatibilityGroups: true, ListTypeAttributes: true,
			OptionalNodeOperations: true, NodeAllocatableResources: true, PartitionableDevicesType: true, ResourcePoolStatus: true,
			WorkloadResourceClaims: false,
		}},
	} {
		t.Run(fmt.Sprint(tc.version, tc.given), func(t *testing.T) {
			set, notes, err := For(tc.version, tc.given)
			if err != nil || len(notes) > 0 {
				t.Fatalf("notes %q, error %v", notes, err)
			}
			if diff := cmp.Diff(tc.want, set.Features()); diff != "" {
				t.Errorf("wrong features (-want +got):\n%s", diff)
			}
			want := tc.changed
			delete(want, WorkloadResourceClaims) // beta in 1.37, and off
			if want == nil {
				want = map[string]bool{}
			}
			if diff := cmp.Diff(want, set.Changed()); diff != "" {
				t.Errorf("wrong changes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestForRefuses(t *testing.T) {
	for _, tc := range []struct {
		version, gate string
		on            bool
		note, err     string
	}{
		{version: "1.33", err: "want 1.34 or newer"},
		{version: "2.0", err: "want a version of Kubernetes like 1.37"},
		{version: "newest", err: "want a version of Kubernetes like 1.37"},
		{version: "1.40", note: "version 1.40 is newer than 1.37"},
		{version: "1.36", gate: DerivedAttributes, on: true, err: "DRADerivedAttributes does not exist in Kubernetes 1.36"},
		{version: "1.36", gate: AdminAccess, err: "DRAAdminAccess is always true in Kubernetes 1.36"},
		{version: "1.36", gate: AdminAccess, on: true},
		{version: "1.36", gate: "InPlacePodVerticalScaling", on: true, note: "InPlacePodVerticalScaling does not decide about devices"},
		{version: "1.36", gate: ResourceClaimDeviceStatus, err: "DRADeviceBindingConditions needs DRAResourceClaimDeviceStatus"},
		{version: "1.36", gate: ConsumableCapacity},
		{version: "1.34", gate: DynamicResourceAllocation, err: "there is nothing to plan"},
	} {
		given := map[string]bool{}
		if tc.gate != "" {
			given[tc.gate] = tc.on
		}
		_, notes, err := For(tc.version, given)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("version %s, %v: error %v, want %q", tc.version, given, err, tc.err)
		}
		if got := strings.Join(notes, "\n"); tc.note == "" && got != "" || !strings.Contains(got, tc.note) {
			t.Errorf("version %s, %v: notes %q, want %q", tc.version, given, got, tc.note)
		}
	}
}

func TestFromMetrics(t *testing.T) {
	got := FromMetrics([]byte(`# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRADeviceTaints",stage="BETA"} 1
kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="ALPHA"} 0
kubernetes_feature_enabled{name="AnyVolumeDataSource",stage=""} 1
other{name="DRAListTypeAttributes"} 1
`))
	if diff := cmp.Diff(map[string]bool{DeviceTaints: true, ConsumableCapacity: false}, got); diff != "" {
		t.Errorf("wrong gates (-want +got):\n%s", diff)
	}
}

// TestDrop: objects that use everything keep it with all gates, and are plain without.
func TestDrop(t *testing.T) {
	all, _, err := For("1.37", map[string]bool{"AllAlpha": true})
	if err != nil {
		t.Fatal(err)
	}
	old, _, err := For("1.34", map[string]bool{"AllBeta": false})
	if err != nil {
		t.Fatal(err)
	}
	if old.On(PrioritizedList) || old.On(AdminAccess) {
		t.Fatal("AllBeta=false left gates on")
	}
	slice, claim, class := fullSlice(), fullClaim(), &resourceapi.DeviceClass{
		Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")},
	}
	kept := append(all.DropSlice(slice), all.DropClaim(&claim.Spec, &claim.Status)...)
	if kept = append(kept, all.DropClass(class)...); len(kept) > 0 {
		t.Errorf("with all gates: dropped %q", kept)
	}
	if diff := cmp.Diff(fullSlice(), slice); diff != "" {
		t.Errorf("changed with all gates:\n%s", diff)
	}
	dropped := append(old.DropSlice(slice), old.DropClaim(&claim.Spec, &claim.Status)...)
	dropped = append(dropped, old.DropClass(class)...)
	if len(dropped) != 26 {
		t.Errorf("dropped %d fields, want 26:\n%s", len(dropped), strings.Join(dropped, "\n"))
	}
	if want := "spec.devices[].taints is dropped: DRADeviceTaints is off in Kubernetes 1.34"; !slices.Contains(dropped, want) {
		t.Errorf("want %q", want)
	}
	plainSlice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		ConsumesCounters: nil, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {}},
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"list": {}},
	}}}}
	if diff := cmp.Diff(plainSlice, slice); diff != "" {
		t.Errorf("left of the slice (-want +got):\n%s", diff)
	}
	if r := claim.Spec.Devices.Requests; r[0].FirstAvailable != nil || r[1].Exactly.AdminAccess != nil || r[1].Exactly.Tolerations != nil {
		t.Errorf("left of the claim: %+v", r)
	}
	if r := claim.Status.Allocation.Devices.Results[0]; r.ShareID != nil || r.ConsumedCapacity != nil || r.AdminAccess != nil {
		t.Errorf("left of the allocation: %+v", r)
	}
}

func fullSlice() *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		SharedCounters: []resourceapi.CounterSet{{Name: "c"}}, PerDeviceNodeSelection: ptr.To(true),
		PartitionTypeAttribute: ptr.To(resourceapi.FullyQualifiedName("a/b")), SkipNodeOperations: []resourceapi.SkipNodeOperation{"x"},
		Devices: []resourceapi.Device{{
			Taints: []resourceapi.DeviceTaint{{Key: "k"}}, NodeName: ptr.To("n"), AllNodes: ptr.To(true),
			ConsumesCounters:  []resourceapi.DeviceCounterConsumption{{CounterSet: "c"}},
			BindingConditions: []string{"a"}, BindingFailureConditions: []string{"b"}, BindsToNode: ptr.To(true),
			AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {RequestPolicy: &resourceapi.CapacityRequestPolicy{}},
			},
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"list": {
				BoolValues: []bool{true}, IntValues: []int64{1}, StringValues: []string{"s"}, VersionValues: []string{"1.0.0"},
			}},
		}},
	}}
}

func fullClaim() *resourceapi.ResourceClaim {
	toleration := []resourceapi.DeviceToleration{{Key: "k"}}
	capacity := &resourceapi.CapacityRequirements{}
	return &resourceapi.ResourceClaim{
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{
				{FirstAvailable: []resourceapi.DeviceSubRequest{{Tolerations: toleration, Capacity: capacity}}},
				{Exactly: &resourceapi.ExactDeviceRequest{
					AdminAccess: ptr.To(true), Tolerations: toleration, Capacity: capacity,
					DerivedAttributes: []resourceapi.DeviceDerivedAttribute{{Name: "a/b"}},
				}},
			},
			Constraints: []resourceapi.DeviceConstraint{{DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName("a/b"))}},
		}},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{
				AdminAccess: ptr.To(true), ShareID: ptr.To(types.UID("u")),
			}},
		}}},
	}
}

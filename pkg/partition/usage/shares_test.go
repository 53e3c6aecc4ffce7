// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// sharers are claims with shares of gpu-a, with these amounts of memory.
func sharers(amounts ...string) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for i, amount := range amounts {
		out = append(out, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: fmt.Sprintf("claim-%d", i)},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{
					Driver: driver, Pool: pool, Device: "gpu-a", ShareID: new(types.UID(fmt.Sprint(i))),
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
						device.CapacityMemory: resource.MustParse(amount), device.CapacityShares: resource.MustParse("1"),
						device.CapacityMultiprocessors: resource.MustParse("0"),
					},
				}},
			}}},
		})
	}
	return out
}

// TestShares: a device with shares says how many are left and how much memory, and who has what.
func TestShares(t *testing.T) {
	settings := partition.Settings{Sharing: &partition.Sharing{MaxClaims: 3, Memory: &partition.SharedMemory{Default: 4 << 30, Min: 4 << 30}}}
	d := partition.Divide(partition.Physical{Device: whole(t, "gpu-a")}, settings, partition.Kept{Shares: true})
	published := d.Devices[0].Resource()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: new(node), Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{published},
	}}
	for name, tc := range map[string]struct {
		claims  []*resourceapi.ResourceClaim
		unknown bool
		want    string
	}{
		"none":               {nil, false, "Free 3 24Gi []"},
		"one":                {sharers("10Gi"), false, "Shared 2 14Gi []"},
		"all shares":         {sharers("4Gi", "4Gi", "4Gi"), false, "Held 0 12Gi []"},
		"all memory":         {sharers("12Gi", "12Gi"), false, "Held 1 0 []"},
		"too little left":    {sharers("12Gi", "9Gi"), false, "Held 1 3Gi []"},
		"more than there is": {sharers("20Gi", "10Gi"), false, "Held 1 -6Gi [" + pool + " gpu-a Overcommitted]"},
		"not known":          {nil, true, "Unknown 3 0 []"},
	} {
		t.Run(name, func(t *testing.T) {
			report := usage.Of(usage.Objects{
				Driver: driver, Slices: []*resourceapi.ResourceSlice{slice}, Claims: tc.claims, ClaimsUnknown: tc.unknown,
			})
			var problems []string
			for _, p := range report.Problems {
				problems = append(problems, p.Subject+" "+p.Reason)
			}
			got := report.Devices[0]
			memory := got.Shares.LeftOf[device.CapacityMemory]
			text := fmt.Sprintf("%s %d %s %v", got.State, got.Shares.Left, memory.String(), problems)
			if diff := cmp.Diff(tc.want, text); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			for i, c := range got.Claims {
				granted := c.Granted[device.CapacityMemory]
				want := tc.claims[i].Status.Allocation.Devices.Results[0].ConsumedCapacity[device.CapacityMemory]
				if c.Shares != 1 || granted.Cmp(want) != 0 {
					t.Errorf("claim %s has %d shares and %s, want %s", c.Name, c.Shares, granted.String(), want.String())
				}
			}
		})
	}
}

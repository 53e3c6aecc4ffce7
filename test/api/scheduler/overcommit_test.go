// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// This file judges allocations by the types of the Kubernetes API alone: with code of Fettle, a mistake in it could hide itself.

// deviceKey names a device.
type deviceKey struct{ driver, pool, device string }

// taken is what claims have of a device.
type taken struct {
	whole  []string
	shares int64
	memory resource.Quantity
	ids    map[types.UID]string
}

// overcommitted returns what is wrong with the allocations of claims, held against the devices in slices of one generation.
func overcommitted(published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) []string {
	devices := map[deviceKey]*resourceapi.Device{}
	for i := range published {
		spec := &published[i].Spec
		for j := range spec.Devices {
			devices[deviceKey{spec.Driver, spec.Pool.Name, spec.Devices[j].Name}] = &spec.Devices[j]
		}
	}
	var wrong []string
	use := map[deviceKey]*taken{}
	for i := range claims {
		claim := &claims[i]
		if claim.Status.Allocation == nil {
			continue
		}
		for j := range claim.Status.Allocation.Devices.Results {
			result := &claim.Status.Allocation.Devices.Results[j]
			key := deviceKey{result.Driver, result.Pool, result.Device}
			if devices[key] == nil {
				wrong = append(wrong, fmt.Sprintf("%s has device %v, which is not published", claim.Name, key))
				continue
			}
			if use[key] == nil {
				use[key] = &taken{ids: map[types.UID]string{}}
			}
			wrong = append(wrong, use[key].add(claim, result)...)
		}
	}
	for key, t := range use {
		wrong = append(wrong, t.exceeds(key.device, devices[key])...)
	}
	slices.Sort(wrong)
	return wrong
}

// add counts one device of a claim.
func (t *taken) add(claim *resourceapi.ResourceClaim, result *resourceapi.DeviceRequestAllocationResult) []string {
	if result.ShareID == nil {
		t.whole = append(t.whole, claim.Name)
		return nil
	}
	var wrong []string
	if other, ok := t.ids[*result.ShareID]; ok {
		wrong = append(wrong, fmt.Sprintf("%s and %s have the same share of %s", other, claim.Name, result.Device))
	}
	t.ids[*result.ShareID] = claim.Name
	granted := result.ConsumedCapacity["memory"]
	if asked := askedMemory(claim, result.Request); granted.Sign() <= 0 || granted.Cmp(asked) < 0 {
		wrong = append(wrong, fmt.Sprintf("%s has %s of %s, and asked for %s", claim.Name, granted.String(), result.Device, asked.String()))
	}
	t.shares++
	t.memory.Add(granted)
	return wrong
}

func askedMemory(claim *resourceapi.ResourceClaim, request string) resource.Quantity {
	for _, r := range claim.Spec.Devices.Requests {
		if r.Name == request && r.Exactly != nil && r.Exactly.Capacity != nil {
			return r.Exactly.Capacity.Requests["memory"]
		}
	}
	return resource.Quantity{}
}

// exceeds holds what claims have of a device against what it has.
func (t *taken) exceeds(name string, device *resourceapi.Device) []string {
	var wrong []string
	memory, shares := device.Capacity["memory"].Value, device.Capacity["shares"].Value
	if t.memory.Cmp(memory) > 0 {
		wrong = append(wrong, fmt.Sprintf("%s has memory %s, and claims have %s", name, memory.String(), t.memory.String()))
	}
	if t.shares > shares.Value() {
		wrong = append(wrong, fmt.Sprintf("%s has %d shares, and %d claims have one", name, shares.Value(), t.shares))
	}
	if t.shares > 0 && !ptr.Deref(device.AllowMultipleAllocations, false) {
		wrong = append(wrong, fmt.Sprintf("%s is not shared, and %s have shares", name, names(maps.Values(t.ids))))
	}
	if len(t.whole) > 1 || len(t.whole) > 0 && t.shares > 0 {
		wrong = append(wrong, fmt.Sprintf("%s is whole for %s, and %d have shares", name, names(slices.Values(t.whole)), t.shares))
	}
	return wrong
}

func names(all func(func(string) bool)) string { return strings.Join(slices.Sorted(all), ", ") }

// TestOvercommitted: each way to give too much is found.
func TestOvercommitted(t *testing.T) {
	published := []resourceapi.ResourceSlice{*slice("a", manyShares("g0", "80Gi", 3), gpu("g1"), manyShares("g2", "80Gi", 3))}
	for name, tc := range map[string]struct {
		claims []resourceapi.ResourceClaim
		want   string
	}{
		"nothing":    {},
		"as allowed": {claims: cases(share("a", "g0", "40Gi"), share("b", "g0", "38Gi"), share("c", "g0", "2Gi"), share("d", "g2", "80Gi"))},
		"memory": {
			claims: cases(share("a", "g0", "40Gi"), share("b", "g0", "40Gi"), share("c", "g0", "1")),
			want:   "g0 has memory 80Gi, and claims have 85899345921",
		},
		"shares": {
			claims: cases(share("a", "g0", "1Gi"), share("b", "g0", "1Gi"), share("c", "g0", "1Gi"), share("d", "g0", "1Gi")),
			want:   "g0 has 3 shares, and 4 claims have one",
		},
		"whole and shared": {
			claims: cases(share("a", "g0", "1Gi"), *held(claim("b", exactly("r", 1)), "a", "a", "g0")),
			want:   "g0 is whole for b, and 1 have shares",
		},
		"whole twice": {
			claims: cases(*held(claim("a", exactly("r", 1)), "a", "a", "g1"), *held(claim("b", exactly("r", 1)), "a", "a", "g1")),
			want:   "g1 is whole for a, b, and 0 have shares",
		},
		"no memory":   {claims: cases(share("a", "g0", "0")), want: "a has 0 of g0, and asked for 0"},
		"unpublished": {claims: cases(share("a", "g7", "1Gi")), want: "which is not published"},
		"not shared":  {claims: cases(share("a", "g1", "1Gi")), want: "g1 is not shared, and a have shares"},
		"one share twice": {
			claims: cases(share("a", "g0", "1Gi"), share("a", "g0", "1Gi")), want: "a and a have the same share of g0",
		},
		"less than asked": {
			claims: cases(*granted(claim("a", needing("memory", "4Gi", exactly("r", 1))), "g0", "2Gi")), want: "a has 2Gi of g0, and asked for 4Gi",
		},
	} {
		wrong := overcommitted(published, tc.claims)
		if (tc.want == "") != (len(wrong) == 0) || !strings.Contains(strings.Join(wrong, "\n"), tc.want) {
			t.Errorf("%s: %q, want %q", name, wrong, tc.want)
		}
	}
}

func cases(claims ...resourceapi.ResourceClaim) []resourceapi.ResourceClaim { return claims }

// manyShares is a device of which several claims may have an amount of memory each.
func manyShares(name, memory string, claims int64) resourceapi.Device {
	d := shared(gpu(name), memory, nil)
	d.Capacity["shares"] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(claims, resource.DecimalSI)}
	return d
}

// share is a claim that has a share of a device.
func share(name, device, memory string) resourceapi.ResourceClaim {
	return *granted(claim(name, exactly("r", 1)), device, memory)
}

func granted(c *resourceapi.ResourceClaim, device, memory string) *resourceapi.ResourceClaim {
	c = held(c, "a", "a", device)
	c.Status.Allocation.NodeSelector = &corev1.NodeSelector{}
	result := &c.Status.Allocation.Devices.Results[0]
	result.ShareID = ptr.To(types.UID(c.Name))
	result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	return c
}

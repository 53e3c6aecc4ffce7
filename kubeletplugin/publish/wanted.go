// SPDX-License-Identifier: Apache-2.0

package publish

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
)

// AsWanted says whether the API server's slices hold exactly the devices that a snapshot publishes, as the scheduler sees them.
func AsWanted(node string, v *inventory.Snapshot, published []resourceapi.ResourceSlice) bool {
	have := map[string]*resourceapi.Device{}
	pools := map[string]bool{}
	for i := range published {
		spec := &published[i].Spec
		pools[spec.Pool.Name] = true
		for j := range spec.Devices {
			have[spec.Pool.Name+"/"+spec.Devices[j].Name] = &spec.Devices[j]
		}
	}
	want := 0
	wanted := Resources(node, v).Pools
	for _, kind := range device.Kinds() {
		pool := inventory.PoolName(node, kind)
		if !pools[pool] {
			return false
		}
		for _, slice := range wanted[pool].Slices {
			for i := range slice.Devices {
				want++
				if d := &slice.Devices[i]; !sameDevice(have[pool+"/"+d.Name], d) {
					return false
				}
			}
		}
	}
	return want == len(have)
}

// sameDevice compares what the scheduler sees of a device. The time of a taint is the API server's.
func sameDevice(there, want *resourceapi.Device) bool {
	if there == nil || len(there.Taints) != len(want.Taints) {
		return false
	}
	for i, taint := range there.Taints {
		taint.TimeAdded = want.Taints[i].TimeAdded
		if taint != want.Taints[i] {
			return false
		}
	}
	return equality.Semantic.DeepEqual(there.Attributes, want.Attributes) && equality.Semantic.DeepEqual(there.Capacity, want.Capacity)
}

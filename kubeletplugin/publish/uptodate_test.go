// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// published is what the API server holds after a view was published as generation 1.
func published(v *inventory.Snapshot) []resourceapi.ResourceSlice {
	var out []resourceapi.ResourceSlice
	for name, pool := range Resources(nodefixture.Node, v).Pools {
		for _, slice := range pool.Slices {
			out = append(out, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			}})
		}
	}
	return out
}

func TestUpToDate(t *testing.T) {
	v := nodefixture.Snapshot(t, "8xh100-sxm")
	slice := func(all []resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
		for i := range all {
			if all[i].Spec.Pool.Name == nodefixture.Node+"/gpu" {
				return &all[i]
			}
		}
		panic("no slice of GPUs")
	}
	tests := []struct {
		name   string
		change func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice
		want   bool
	}{
		{"as published", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice { return all }, true},
		{"nothing", func([]resourceapi.ResourceSlice) []resourceapi.ResourceSlice { return nil }, false},
		{"an empty pool of a former version", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			return append(all, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Pool: resourceapi.ResourcePool{Name: nodefixture.Node + "/fpga", Generation: 1, ResourceSliceCount: 1},
			}})
		}, true},
		{"a pool with a device that is gone", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			return append(all, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Devices: []resourceapi.Device{{Name: "r0"}},
				Pool:    resourceapi.ResourcePool{Name: nodefixture.Node + "/fpga", Generation: 1, ResourceSliceCount: 1},
			}})
		}, false},
		{"a device is missing", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			s := slice(all)
			s.Spec.Devices = s.Spec.Devices[1:]
			return all
		}, false},
		{"a device too many", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			s := slice(all)
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: "ghost"})
			return all
		}, false},
		{"an old attribute", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			old := "former"
			slice(all).Spec.Devices[0].Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: &old}
			return all
		}, false},
		{"a capacity is missing", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			slice(all).Spec.Devices[0].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"other": {}}
			return all
		}, false},
		{"as published, with taints and their times", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			slice(all).Spec.Devices[0].Taints[0].TimeAdded = &metav1.Time{Time: time.Unix(1, 0)}
			return all
		}, true},
		{"a taint is missing", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			slice(all).Spec.Devices[0].Taints = nil
			return all
		}, false},
		{"a taint is another", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			slice(all).Spec.Devices[0].Taints[0].Effect = resourceapi.DeviceTaintEffectNoExecute
			return all
		}, false},
		{"a taint too many", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			slice(all).Spec.Devices[7].Taints = []resourceapi.DeviceTaint{{Key: inventory.TaintUnhealthy}}
			return all
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := v
			if strings.Contains(tt.name, "taint") {
				v = nodefixture.Ailing(t, true)
			}
			if got := UpToDate(nodefixture.Node, v, tt.change(published(v))); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

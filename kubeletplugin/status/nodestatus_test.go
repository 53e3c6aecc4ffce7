// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// published is what the API server holds after a view was published as generation 1.
func published(v *view) []resourceapi.ResourceSlice {
	var out []resourceapi.ResourceSlice
	for name, pool := range resources(testNode, v).Pools {
		for _, slice := range pool.Slices {
			out = append(out, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			}})
		}
	}
	return out
}

func TestNodeStatus(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	disks := viewOf(t, "4xlocalssd")
	disks.withheld[disks.devices[0].Name] = beingEmptied
	broken := viewOf(t, "broken-no-driver")
	silent := viewOf(t, "8xh100-sxm")
	silent = silent.with(verdicts{
		silent:  map[string]string{silent.devices[0].Name: "nvml says nothing of the device"},
		trouble: "the health ledger is in memory only: no space",
	})
	tests := map[string]statusInput{
		"8xh100-sxm":      {view: viewOf(t, "8xh100-sxm"), prepared: 3, published: true},
		"4xlocalssd":      {view: disks, published: true},
		"broken":          {view: broken, ready: errors.New("kubelet has not registered the plugin yet")},
		"retiring":        {view: broken, prepared: 1, retired: true, published: true},
		"retired":         {view: broken, retired: true, published: true, emptied: true},
		"empty-unwritten": {view: viewOf(t, "empty")},
		"unhealthy":       {view: ailing(t, true), published: true},
		"unhealthy-older": {view: ailing(t, false), published: true},
		"silent":          {view: silent, published: true},
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			in.node, in.version, in.now = testNode, "v1.2.3", now
			if in.published && !in.retired {
				in.slices = published(in.view)
			}
			status := nodeStatus(in)
			golden(t, "nodestatus-"+name, status)
			in.before, in.now = &status, now.Add(time.Hour)
			if diff := cmp.Diff(status, nodeStatus(in)); diff != "" {
				t.Errorf("an hour later, with no change (-before +after):\n%s", diff)
			}
		})
	}
}

// TestNodeStatusTimes: a time changes with what it dates, and nothing else does.
func TestNodeStatusTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	v := viewWith(gpu("gpu0", 0))
	in := statusInput{node: testNode, view: v, slices: published(v), published: true, now: now}
	before := nodeStatus(in)
	in.before, in.now, in.ready = &before, now.Add(time.Hour), errors.New("not ready")
	for i := range in.slices {
		if in.slices[i].Spec.Pool.Name == testNode+"/gpu" {
			in.slices[i].Spec.Pool.Generation++
		}
	}
	after := nodeStatus(in)
	for i, pool := range after.Pools {
		moved := !pool.Published.Equal(before.Pools[i].Published)
		if want := pool.Kind == "gpu"; moved != want {
			t.Errorf("pool %s: time moved %v, want %v", pool.Name, moved, want)
		}
	}
	for _, c := range after.Conditions {
		was := meta.FindStatusCondition(before.Conditions, c.Type)
		if moved, want := !c.LastTransitionTime.Equal(&was.LastTransitionTime), c.Type == v1alpha1.ConditionReady; moved != want {
			t.Errorf("condition %s: time moved %v, want %v", c.Type, moved, want)
		}
	}
	if was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); was.Status != metav1.ConditionTrue {
		t.Error("the former status was changed")
	}
}

func TestAsWanted(t *testing.T) {
	v := viewOf(t, "8xh100-sxm")
	slice := func(all []resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
		for i := range all {
			if all[i].Spec.Pool.Name == testNode+"/gpu" {
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
		{"an empty pool is missing", func(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
			return []resourceapi.ResourceSlice{*slice(all)}
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
			slice(all).Spec.Devices[7].Taints = []resourceapi.DeviceTaint{{Key: TaintUnhealthy}}
			return all
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := v
			if strings.Contains(tt.name, "taint") {
				v = ailing(t, true)
			}
			if got := asWanted(testNode, v, tt.change(published(v))); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestStatusListsBitstreams: as many as the API takes.
func TestStatusListsBitstreams(t *testing.T) {
	in := statusInput{view: viewOf(t, "empty"), now: time.Now()}
	for i := range v1alpha1.MaxBitstreams + 1 {
		in.bitstreams = append(in.bitstreams, digestOf([]byte{byte(i), byte(i >> 8)}))
	}
	if diff := cmp.Diff(in.bitstreams[:v1alpha1.MaxBitstreams], nodeStatus(in).Bitstreams); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	in.bitstreams = in.bitstreams[:1]
	if diff := cmp.Diff(in.bitstreams, nodeStatus(in).Bitstreams); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	in.bitstreams = nil
	if got := nodeStatus(in).Bitstreams; got != nil {
		t.Errorf("listed %v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/test/objects"
)

// gpus makes a node with so many GPUs, all alike, on two PCIe roots.
func gpus(n int) Input {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1-gpu"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "fettle.dev", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1/gpu", Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range n {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "resource.kubernetes.io/pcieRoot": {StringValue: ptr.To(fmt.Sprintf("pci%d", i%2))},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.fettle.dev"}}
	class.Spec.Selectors = objects.Selectors(`device.attributes["fettle.dev"].type == "gpu"`)
	return Input{
		Features: structured.Features{
			AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, ConsumableCapacity: true,
			DeviceBindingAndStatus: true,
		},
		Slices: []*resourceapi.ResourceSlice{slice}, Classes: map[string]*resourceapi.DeviceClass{class.Name: class},
		Node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		Holders: map[structured.DeviceID][]Holder{},
		Claims:  []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}},
	}
}

// want adds a request for so many devices.
func (in *Input) want(name string, count int64) *resourceapi.ExactDeviceRequest {
	r := &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.fettle.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}
	devices := &in.Claims[0].Spec.Devices
	devices.Requests = append(devices.Requests, resourceapi.DeviceRequest{Name: name, Exactly: r})
	return r
}

// TestWorstCase asks for more requests than there are devices, which makes the allocator try every order.
func TestWorstCase(t *testing.T) {
	in := gpus(15)
	for i := range 16 {
		in.want(fmt.Sprintf("r%02d", i), 1)
	}
	in.Timeout = time.Hour // which a search in every order would take, and more
	v := Judge(t.Context(), in)
	if v.Outcome != DoesNotFit {
		t.Errorf("outcome %q, want %q", v.Outcome, DoesNotFit)
	}
	problems := v.Claims[0].Problems
	if len(problems) != 1 || problems[0].Shortage == nil || problems[0].Shortage.Need != 16 || problems[0].Shortage.Have != 15 {
		t.Errorf("problems: %+v", problems)
	}
	in = gpus(8)
	for i := range 8 {
		in.want(fmt.Sprintf("r%d", i), 1)
	}
	in.State.AllocatedDevices = sets.New(structured.MakeDeviceID("fettle.dev", "n1/gpu", "gpu-3"))
	if v := Judge(t.Context(), in); v.Outcome != DoesNotFit || v.Claims[0].Problems[0].Shortage.Have != 7 {
		t.Errorf("eight requests, one device short: %q, %+v", v.Outcome, v.Claims[0].Problems)
	}
}

// TestTimeout has no reason that can be counted, so that only the search shows that nothing fits.
func TestTimeout(t *testing.T) {
	in := gpus(24)
	in.Timeout = time.Millisecond // fragile: the search has no end, so that no limit is too short
	for i := range in.Slices[0].Spec.Devices {
		in.Slices[0].Spec.Devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: fmt.Sprintf("s%d", i%2), Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("3")}},
		}}
	}
	counters := in.Slices[0].DeepCopy()
	counters.Name, counters.Spec.Devices = "n1-counters", nil
	for i := range 2 {
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{
			Name: fmt.Sprintf("s%d", i), Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("14")}},
		})
	}
	in.Slices = append(in.Slices, counters)
	for _, slice := range in.Slices {
		slice.Spec.Pool.ResourceSliceCount = 2
	}
	in.want("r", 9) // four of each set fit
	if v := Judge(t.Context(), in); v.Outcome != TimedOut || v.Impossible() {
		t.Errorf("outcome %q: %s, problems %+v", v.Outcome, v.Error, v.Claims[0].Problems)
	}
}

// TestStopped: what was not evaluated because the caller waits no longer is against no device.
func TestStopped(t *testing.T) {
	in := gpus(2)
	in.want("gpu", 1).Selectors = objects.Selectors("[" + strings.Repeat("1, ", 500) + "1].all(x, x == 1)")
	if v := Judge(t.Context(), in); v.Outcome != Fits {
		t.Fatalf("outcome %q: %s", v.Outcome, v.Error)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("the time of this pod is over"))
	v := Judge(ctx, in)
	if v.Outcome != TimedOut || v.Impossible() || len(v.Claims) > 0 || v.Error != "the time of this pod is over" {
		t.Errorf("outcome %q: %s, claims %+v", v.Outcome, v.Error, v.Claims)
	}
}

func TestParts(t *testing.T) {
	device := dracel.Device{
		Driver: "fettle.dev",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: ptr.To("gpu")}, "index": {IntValue: ptr.To[int64](3)}, "driverVersion": {VersionValue: ptr.To("550.1.0")},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("24Gi")}},
	}
	const attributes = `device.attributes["fettle.dev"]`
	for _, test := range []struct{ expression, want string }{
		{attributes + `.type == "fpga"`, attributes + `.type == "fpga" is false (` + attributes + `.type is "gpu")`},
		{
			attributes + `.type == "gpu" && device.capacity["fettle.dev"].memory.compareTo(quantity("40Gi")) >= 0`,
			`device.capacity["fettle.dev"].memory.compareTo(quantity("40Gi")) >= 0 is false (device.capacity["fettle.dev"].memory is 24Gi)`,
		},
		{`!(` + attributes + `.index == 3 || device.driver == "x")`, attributes + `.index == 3 is true (` + attributes + `.index is 3)`},
		{
			attributes + `.type == "a" || ` + attributes + `.type == "b"`,
			attributes + `.type == "a" is false (` + attributes + `.type is "gpu"); ` + attributes + `.type == "b" is false (` + attributes +
				`.type is "gpu")`,
		},
		{`has(` + attributes + `.model)`, `has(` + attributes + `.model) is false`},
		{`"model" in ` + attributes, `"model" in ` + attributes + ` is false (` + attributes + ` has driverVersion, index, type)`},
		{
			attributes + `.model == "x"`,
			attributes + `.model == "x" is error: no such key: model (` + attributes + `.model is error: no such key: model)`,
		},
		{attributes + `.?model.orValue("") == "x"`, attributes + `.?model.orValue("") == "x" is false (` + attributes + `.?model is absent)`},
		{
			attributes + `.driverVersion.isGreaterThan(semver("560.0.0"))`,
			attributes + `.driverVersion.isGreaterThan(semver("560.0.0")) is false (` + attributes + `.driverVersion is 550.1.0)`,
		},
		{attributes + `.index in [1, 2]`, attributes + `.index in [1, 2] is false (` + attributes + `.index is 3)`},
		{`["a", "b"].exists(x, x == device.driver)`, `["a", "b"].exists(x, x == device.driver) is false`},
		{`device.driver == "fettle.dev" ? false : true`, `false is false`},
	} {
		x, err := NewExpressions(gpus(1).Features).get(test.expression)
		if err != nil {
			t.Errorf("%s: %v", test.expression, err)
			continue
		}
		if diff := cmp.Diff(test.want, partsText(x.explain(t.Context(), device), test.expression)); diff != "" {
			t.Errorf("%s: %s", test.expression, diff)
		}
	}
}

// TestKnown: an allocator that found nothing before is not asked again. The reasons are the same.
func TestKnown(t *testing.T) {
	in := gpus(8)
	in.want("r", 9)
	asked := Judge(t.Context(), in)
	in.DoesNotFit = true
	if diff := cmp.Diff(asked, Judge(t.Context(), in)); diff != "" || asked.Outcome != DoesNotFit {
		t.Errorf("outcome %q: %s", asked.Outcome, diff)
	}
	in = gpus(8)
	in.want("r", 1)
	in.DoesNotFit = true // which the allocator would contradict
	if v := Judge(t.Context(), in); v.Outcome != DoesNotFit {
		t.Errorf("outcome %q", v.Outcome)
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/objects"
)

// TestOvertakenIsNotTold: that a claim is not what it was when its call came is nothing to say about the claim. The writer has no client
// and no recorder here.
func TestOvertakenIsNotTold(t *testing.T) {
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "gpu0"))
	for _, cause := range []error{&record.StaleError{UID: "u1"}, prepare.ErrChanged, prepare.ErrOvertaken} {
		w := NewClaimWriter(ClaimConfig{Overtaken: prepare.Overtaken})
		if err := w.WriteRefusal(t.Context(), c, fmt.Errorf("claim x: %w", cause)); err != nil {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// TestWithCondition: a retry every few seconds must not change the time of a refusal, or each would be a write.
func TestWithCondition(t *testing.T) {
	past, now := time.Unix(1000, 0), time.Unix(2000, 0)
	refused := condition(metav1.ConditionFalse, now)[0]
	foreign := resourceapi.AllocatedDeviceStatus{
		Driver: "other.dev", Pool: nodefixture.Node + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionTrue, past),
	}
	own := func(at time.Time, status metav1.ConditionStatus) resourceapi.AllocatedDeviceStatus {
		return resourceapi.AllocatedDeviceStatus{
			Driver: v1alpha1.DriverName, Pool: nodefixture.Node + "/gpu", Device: "gpu0", Conditions: condition(status, at),
		}
	}
	same := nodefixture.Look(nodefixture.Result("a", device.KindGPU, "gpu0"))
	others := nodefixture.Result("x", device.KindGPU, "gpu0")
	others.Driver = "other.dev"
	shared := nodefixture.Result("gpu", device.KindGPU, "gpu0")
	shared.ShareID = new(types.UID("s"))
	ownShare := own(now, metav1.ConditionFalse)
	ownShare.ShareID = new("s")
	tests := []struct {
		name        string
		results     []resourceapi.DeviceRequestAllocationResult
		have, want  []resourceapi.AllocatedDeviceStatus
		wantChanged bool
	}{
		{
			"first",
			[]resourceapi.DeviceRequestAllocationResult{same, others},
			[]resourceapi.AllocatedDeviceStatus{foreign},
			[]resourceapi.AllocatedDeviceStatus{foreign, own(now, metav1.ConditionFalse)},
			true,
		},
		{
			"again",
			[]resourceapi.DeviceRequestAllocationResult{same},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			false,
		},
		{
			"after success",
			[]resourceapi.DeviceRequestAllocationResult{same},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionTrue)},
			[]resourceapi.AllocatedDeviceStatus{own(now, metav1.ConditionFalse)},
			true,
		},
		{
			"two requests, one device",
			[]resourceapi.DeviceRequestAllocationResult{same, same},
			nil,
			[]resourceapi.AllocatedDeviceStatus{own(now, metav1.ConditionFalse)},
			true,
		},
		{
			"a share",
			[]resourceapi.DeviceRequestAllocationResult{shared},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse), ownShare},
			true,
		},
		{"none of ours", []resourceapi.DeviceRequestAllocationResult{others}, nil, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := nodefixture.Allocated("u1", tt.results...)
			c.Status.Devices = tt.have
			before := c.DeepCopy()
			got, changed := withCondition(c, ours, refused)
			if changed != tt.wantChanged {
				t.Errorf("changed %v, want %v", changed, tt.wantChanged)
			}
			if diff := cmp.Diff(tt.want, got.Status.Devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, c); diff != "" {
				t.Errorf("the claim itself was changed:\n%s", diff)
			}
		})
	}
}

func condition(status metav1.ConditionStatus, at time.Time) []metav1.Condition {
	return []metav1.Condition{{Type: conditionPrepared, Status: status, LastTransitionTime: metav1.NewTime(at)}}
}

// TestAllocatedAnew: what became of a claim's devices is not said of those that it got since.
func TestAllocatedAnew(t *testing.T) {
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "gpu0"))
	now := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "gpu0"))
	now.Status.Allocation.Devices.Results[0].Pool = "node-2/gpu"
	client := fake.NewClientset(now)
	client.PrependReactor("update", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim).Status.Allocation.Devices.Results[0].Pool == "node-2/gpu" {
			t.Error("the claim is written with its new devices")
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "resourceclaims"}, c.Name, nil)
	})
	w := NewClaimWriter(ClaimConfig{
		Client: client, Events: events.NewFakeRecorder(10), Clock: clock.RealClock{}, Reason: func(error) string { return "Busy" },
		Overtaken: prepare.Overtaken,
	})
	check.Must(t, w.WriteRefusal(t.Context(), c, errors.New("is held by another claim")))
}

// TestPreparedWithoutARefusal costs no call: the writer has no client here.
func TestPreparedWithoutARefusal(t *testing.T) {
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "gpu0"))
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{
		{Driver: "other.dev", Pool: nodefixture.Node + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionFalse, time.Now())},
		{Driver: v1alpha1.DriverName, Pool: nodefixture.Node + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionTrue, time.Now())},
	}
	if err := (&ClaimWriter{}).ClearRefusal(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestWarnIgnored: a configuration that no driver reads is said in an Event, one that is read is not.
func TestWarnIgnored(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	w := NewClaimWriter(ClaimConfig{Events: recorder})
	c := nodefixture.Allocated("u1", nodefixture.Result("gpu", device.KindGPU, "gpu0"))
	config := func(driver string) resourceapi.DeviceAllocationConfiguration {
		return resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"gpu"},
			DeviceConfiguration: objects.Opaque(driver, `{"kind":"GpuConfig","sharing":{"strategy":"MPS"}}`),
		}
	}
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(v1alpha1.DriverName)}
	w.WarnIgnored(c)
	if len(recorder.Events) > 0 {
		t.Errorf("of a configuration that is read: %q", <-recorder.Events)
	}
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, config("gpu.nvidia.com"))
	w.WarnIgnored(c)
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events, want 1", len(recorder.Events))
	}
	want := "Warning ConfigIgnored status.allocation.devices.config[1]: the parameters for driver gpu.nvidia.com (GpuConfig: sharing.strategy)"
	if got := <-recorder.Events; !strings.HasPrefix(got, want) {
		t.Errorf("Event %q, want %q", got, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// TestReasons: reasons are stable, since alerts and scripts match them.
func TestReasons(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{&claim.RefusedError{Reason: claim.ReasonConfigInvalid}, "ConfigInvalid"},
		{fmt.Errorf("wrapped: %w", &claim.RefusedError{Reason: claim.ReasonNamespaceNotAllowed}), "NamespaceNotAllowed"},
		{fmt.Errorf("wrapped: %w", &record.InUseError{Owner: &record.Record{}}), "DeviceInUse"},
		{errors.Join(&record.InUseError{Owner: &record.Record{}}, errors.New("and more")), "DeviceInUse"},
		{fmt.Errorf("device x: %w", engine.ErrDeviceGone), "DeviceGone"},
		{fmt.Errorf("node x: %w", errRetired), "NodeRetired"},
		{fmt.Errorf("wrapped: %w", &engine.PendingError{UID: "u1"}), "PreparePending"},
		{&record.StaleError{UID: "u1"}, "PrepareOvertaken"},
		{fmt.Errorf("claim x: %w", engine.ErrChanged), "PrepareOvertaken"},
		{fmt.Errorf("wrapped: %w", engine.ErrOvertaken), "PrepareOvertaken"},
		{fmt.Errorf("device x %w: another call works on it: %w", record.ErrBusy, context.DeadlineExceeded), "PreparePending"},
		{fmt.Errorf("claim x %w: another call works on it: %w", record.ErrBusy, engine.ErrOvertaken), "PrepareOvertaken"},
		{errors.New("anything else"), "PrepareFailed"},
	}
	for _, tt := range tests {
		if got := reasonFor(tt.err); got != tt.want {
			t.Errorf("reasonFor(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}

// TestOvertakenIsNotTold: that a claim is not what it was when its call came is nothing to say about the claim. The teller has no client
// and no recorder here.
func TestOvertakenIsNotTold(t *testing.T) {
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"))
	for _, cause := range []error{&record.StaleError{UID: "u1"}, engine.ErrChanged, engine.ErrOvertaken} {
		if err := (&teller{}).refused(t.Context(), c, fmt.Errorf("claim x: %w", cause)); err != nil {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

func TestTruncate(t *testing.T) {
	tests := []struct {
		text  string
		limit int
		want  string
	}{
		{"short", 10, "short"},
		{"exactly-10", 10, "exactly-10"},
		{"eleven chars", 11, "eleven c…"},
		{"ééééé", 9, "ééé…"},
		{"ééééé", 8, "éé…"},
		{"not \xff UTF-8", 20, "not � UTF-8"},
		{"longer", 3, "…"},
	}
	for _, tt := range tests {
		if got := truncate(tt.text, tt.limit); got != tt.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.want)
		}
	}
}

func FuzzTruncate(f *testing.F) {
	f.Add("ééééé", 8)
	f.Add("\xff\xfe\xfd", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < len("…") {
			return // shorter than the mark
		}
		got := truncate(text, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("truncate(%q, %d) = %q: %d bytes", text, limit, got, len(got))
		}
		if clean := strings.ToValidUTF8(text, "�"); len(clean) <= limit && got != clean {
			t.Errorf("truncate(%q, %d) = %q although it fits", text, limit, got)
		}
	})
}

// TestWithCondition: a retry every few seconds must not change the time of a refusal, or each would be a write.
func TestWithCondition(t *testing.T) {
	past, now := time.Unix(1000, 0), time.Unix(2000, 0)
	refused := condition(metav1.ConditionFalse, now)[0]
	foreign := resourceapi.AllocatedDeviceStatus{
		Driver: "other.dev", Pool: testNode + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionTrue, past),
	}
	own := func(at time.Time, status metav1.ConditionStatus) resourceapi.AllocatedDeviceStatus {
		return resourceapi.AllocatedDeviceStatus{
			Driver: v1alpha1.DriverName, Pool: testNode + "/gpu", Device: "gpu0", Conditions: condition(status, at),
		}
	}
	same := look(result("a", device.KindGPU, "gpu0"))
	others := result("x", device.KindGPU, "gpu0")
	others.Driver = "other.dev"
	shared := result("gpu", device.KindGPU, "gpu0")
	shared.ShareID = new(types.UID("s"))
	ownShare := own(now, metav1.ConditionFalse)
	ownShare.ShareID = new("s")
	tests := []struct {
		name        string
		results     []apiResult
		have, want  []resourceapi.AllocatedDeviceStatus
		wantChanged bool
	}{
		{
			"first",
			[]apiResult{same, others},
			[]resourceapi.AllocatedDeviceStatus{foreign},
			[]resourceapi.AllocatedDeviceStatus{foreign, own(now, metav1.ConditionFalse)},
			true,
		},
		{
			"again",
			[]apiResult{same},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			false,
		},
		{
			"after success",
			[]apiResult{same},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionTrue)},
			[]resourceapi.AllocatedDeviceStatus{own(now, metav1.ConditionFalse)},
			true,
		},
		{"two requests, one device", []apiResult{same, same}, nil, []resourceapi.AllocatedDeviceStatus{own(now, metav1.ConditionFalse)}, true},
		{
			"a share",
			[]apiResult{shared},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse)},
			[]resourceapi.AllocatedDeviceStatus{own(past, metav1.ConditionFalse), ownShare},
			true,
		},
		{"none of ours", []apiResult{others}, nil, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := allocated("u1", tt.results...)
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

// TestPreparedWithoutARefusal costs no call: the teller has no client here.
func TestPreparedWithoutARefusal(t *testing.T) {
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"))
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{
		{Driver: "other.dev", Pool: testNode + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionFalse, time.Now())},
		{Driver: v1alpha1.DriverName, Pool: testNode + "/gpu", Device: "gpu0", Conditions: condition(metav1.ConditionTrue, time.Now())},
	}
	if err := (&teller{}).prepared(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestDeviceKeys(t *testing.T) {
	share := "s"
	keys := map[deviceKey]bool{
		keyOf("d", "p", "x", nil): true, keyOf("d", "p", "x", &share): true, keyOf("d", "p", "y", nil): true, keyOf("d", "q", "x", nil): true,
	}
	if diff := cmp.Diff(4, len(keys)); diff != "" {
		t.Error(diff)
	}
}

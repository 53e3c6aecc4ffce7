// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// conditionPrepared is the condition on a claim's device that says why Prepare failed.
	conditionPrepared = "Prepared"
	// fieldManager owns Fettle's entries of status.devices. Entries of other drivers are never touched.
	fieldManager = "fettle.dev"

	reasonPrepared = "Prepared"
	// reasonIgnored: the claim has a configuration that no driver reads.
	reasonIgnored = "ConfigIgnored"
)

// ClaimConfig has the services and functions that a ClaimWriter uses.
type ClaimConfig struct {
	Client kubernetes.Interface
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// Reason returns the stable reason of an error. Overtaken reports whether an error belongs to a call that came too late for the present
	// state of its claim. Such an error is not written to the claim.
	Reason    func(error) string
	Overtaken func(error) bool
	// Programmed returns the known content of a claim's regions, by POOL/DEVICE. Presets returns the presets that were applied, by request.
	Programmed func(r *record.Record) (map[string]region.Programmed, error)
	Presets    func(r *record.Record) (map[string][]preset.Origin, error)
}

// ClaimWriter writes the results of Prepare to a claim: an Event for people, conditions and data in status.devices for machines. A claim
// that is prepared at the first attempt and has nothing to show costs no write.
type ClaimWriter struct {
	ClaimConfig
	later deviceWrites
}

// NewClaimWriter returns a writer.
func NewClaimWriter(c ClaimConfig) *ClaimWriter {
	return &ClaimWriter{ClaimConfig: c, later: deviceWrites{wake: notify.New(), pending: map[types.UID]deviceWrite{}}}
}

// WriteRefusal writes why a claim could not be prepared.
func (w *ClaimWriter) WriteRefusal(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error {
	if w.Overtaken(cause) {
		return nil
	}
	reason := w.Reason(cause)
	w.Events.Eventf(c, nil, corev1.EventTypeWarning, reason, "Prepare", "%s", message.EventNote(cause.Error()))
	return w.setCondition(ctx, c, metav1.Condition{
		Type: conditionPrepared, Status: metav1.ConditionFalse, Reason: reason, Message: cause.Error(),
	})
}

// ClearRefusal replaces the condition of an earlier refusal. It does nothing if there is none.
func (w *ClaimWriter) ClearRefusal(ctx context.Context, c *resourceapi.ResourceClaim) error {
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		if d.Driver == v1alpha1.DriverName && meta.IsStatusConditionFalse(d.Conditions, conditionPrepared) {
			return w.setCondition(ctx, c, metav1.Condition{
				Type: conditionPrepared, Status: metav1.ConditionTrue, Reason: reasonPrepared, Message: "the device is ready for the pod",
			})
		}
	}
	return nil
}

// WarnIgnored writes an Event for each configuration of a claim that no driver reads, because all devices that it is for are of others. The
// pod runs without what it asks for.
func (w *ClaimWriter) WarnIgnored(c *resourceapi.ResourceClaim) {
	for _, ignored := range claim.IgnoredConfigs(c, v1alpha1.DriverName) {
		w.Events.Eventf(c, nil, corev1.EventTypeWarning, reasonIgnored, "Prepare", "%s",
			message.EventNote(ignored.Path.String()+": "+ignored.String()))
	}
}

// setCondition sets the condition on Fettle's devices of a claim. It is an update, not an apply: an apply would encode opaque
// configurations again, and if the order of their keys changed, the API server would refuse that as a change of the allocation.
func (w *ClaimWriter) setCondition(ctx context.Context, c *resourceapi.ResourceClaim, condition metav1.Condition) error {
	return w.SetConditionOf(ctx, c, ours, condition)
}

func ours(r *resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName }

// SetConditionOf sets a condition on the selected devices of a claim.
func (w *ClaimWriter) SetConditionOf(
	ctx context.Context, c *resourceapi.ResourceClaim, match func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) error {
	condition.Message = message.Clip(condition.Message, message.MaxCondition)
	condition.LastTransitionTime = metav1.NewTime(w.Clock.Now())
	err := w.update(ctx, c, func(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
		return withCondition(c, match, condition)
	})
	if err != nil {
		return fmt.Errorf("set the condition %s of claim %s/%s: %w", condition.Type, c.Namespace, c.Name, err)
	}
	return nil
}

// update writes the changed claim. It writes nothing if there is no change, if another claim has taken the name, or if the claim was
// allocated anew.
func (w *ClaimWriter) update(
	ctx context.Context, c *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool),
) error {
	claims := w.Client.ResourceV1().ResourceClaims(c.Namespace)
	current := c
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = claims.Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		updated, changed := change(current)
		current = nil
		if !changed || updated.UID != c.UID || !equality.Semantic.DeepEqual(updated.Status.Allocation, c.Status.Allocation) {
			return nil
		}
		_, err = claims.UpdateStatus(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
}

// withCondition returns the claim with a condition on each selected device, and whether that changed anything. A condition keeps its time
// while its status stays the same, so that a retry every few seconds does not change the claim.
func withCondition(
	c *resourceapi.ResourceClaim, match func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) (*resourceapi.ResourceClaim, bool) {
	return withEntries(c, match, func(_ *resourceapi.DeviceRequestAllocationResult, entry *resourceapi.AllocatedDeviceStatus) bool {
		return meta.SetStatusCondition(&entry.Conditions, condition)
	})
}

// withEntries returns the claim with the entries of the selected devices changed, and whether any was.
func withEntries(
	c *resourceapi.ResourceClaim, match func(*resourceapi.DeviceRequestAllocationResult) bool,
	change func(*resourceapi.DeviceRequestAllocationResult, *resourceapi.AllocatedDeviceStatus) bool,
) (*resourceapi.ResourceClaim, bool) {
	out := c.DeepCopy()
	if out.Status.Allocation == nil {
		return out, false
	}
	changed := false
	for i := range out.Status.Allocation.Devices.Results {
		result := &out.Status.Allocation.Devices.Results[i]
		if match(result) && change(result, entryOf(&out.Status, result)) {
			changed = true
		}
	}
	return out, changed
}

// entryOf returns the entry of status.devices for an allocated device and adds a missing one. Two requests with adminAccess may have the
// same device, which has one entry.
func entryOf(status *resourceapi.ResourceClaimStatus, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	share := (*string)(r.ShareID)
	for i := range status.Devices {
		d := &status.Devices[i]
		if claim.KeyOf(d.Driver, d.Pool, d.Device, d.ShareID) == claim.KeyOf(r.Driver, r.Pool, r.Device, share) {
			return d
		}
	}
	status.Devices = append(status.Devices, resourceapi.AllocatedDeviceStatus{
		Driver: r.Driver, Pool: r.Pool, Device: r.Device, ShareID: share,
	})
	return &status.Devices[len(status.Devices)-1]
}

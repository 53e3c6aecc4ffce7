// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

const (
	// conditionPrepared is the condition on a claim's device that says why it could not be prepared.
	conditionPrepared = "Prepared"
	// fieldManager writes our entries of status.devices; other drivers' entries are never touched.
	fieldManager = "fettle.dev"

	reasonPrepared = "Prepared"
)

// ClaimConfig is what a ClaimWriter works with.
type ClaimConfig struct {
	Client kubernetes.Interface
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// Reason is the stable reason of an error. Overtaken says that an error is about a call that came too late for what its claim is now,
	// which is nothing to tell about the claim as it is.
	Reason    func(error) string
	Overtaken func(error) bool
	// Programmed is what a claim's regions are known to hold, by POOL/DEVICE, Presets whose presets its requests have.
	Programmed func(r *record.Record) (map[string]region.Programmed, error)
	Presets    func(r *record.Record) (map[string][]preset.Origin, error)
}

// ClaimWriter says on a claim what became of it: an Event for people, conditions and data in status.devices for machines. A claim that is
// prepared at the first attempt, without anything to show, costs nothing here.
type ClaimWriter struct{ ClaimConfig }

// NewClaimWriter makes a writer.
func NewClaimWriter(c ClaimConfig) *ClaimWriter { return &ClaimWriter{c} }

// Refused tells that a claim could not be prepared.
func (w *ClaimWriter) Refused(ctx context.Context, c *resourceapi.ResourceClaim, cause error) error {
	if w.Overtaken(cause) {
		return nil
	}
	reason := w.Reason(cause)
	w.Events.Eventf(c, nil, corev1.EventTypeWarning, reason, "Prepare", "%s", message.EventNote(cause.Error()))
	return w.setCondition(ctx, c, metav1.Condition{
		Type: conditionPrepared, Status: metav1.ConditionFalse, Reason: reason, Message: cause.Error(),
	})
}

// Prepared takes back what Refused said. Where it said nothing there is nothing to do.
func (w *ClaimWriter) Prepared(ctx context.Context, c *resourceapi.ResourceClaim) error {
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

// setCondition sets the condition on our devices of a claim. It is an update and not an apply: applying encodes opaque
// configurations anew, and where their keys were not in order the API server takes that for a change of the allocation.
func (w *ClaimWriter) setCondition(ctx context.Context, c *resourceapi.ResourceClaim, condition metav1.Condition) error {
	return w.SetConditionOf(ctx, c, ours, condition)
}

func ours(r *resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName }

// SetConditionOf is setCondition for some of the devices.
func (w *ClaimWriter) SetConditionOf(
	ctx context.Context, c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) error {
	condition.Message = message.Clip(condition.Message, message.MaxCondition)
	condition.LastTransitionTime = metav1.NewTime(w.Clock.Now())
	err := w.update(ctx, c, func(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
		return withCondition(c, meant, condition)
	})
	if err != nil {
		return fmt.Errorf("set the condition %s of claim %s/%s: %w", condition.Type, c.Namespace, c.Name, err)
	}
	return nil
}

// update writes what change makes of the claim, unless that is nothing new or another claim has the name by now.
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
		if !changed || updated.UID != c.UID {
			return nil
		}
		_, err = claims.UpdateStatus(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
}

// withCondition returns the claim with a condition on each of its devices that is meant, and whether that changed anything. A condition
// that has the same status already keeps its time, so that a retry every few seconds leaves the claim as it is.
func withCondition(
	c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool, condition metav1.Condition,
) (*resourceapi.ResourceClaim, bool) {
	return withEntries(c, meant, func(_ *resourceapi.DeviceRequestAllocationResult, entry *resourceapi.AllocatedDeviceStatus) bool {
		return meta.SetStatusCondition(&entry.Conditions, condition)
	})
}

// withEntries returns the claim with the entries of those of its devices changed that are meant, and whether any was.
func withEntries(
	c *resourceapi.ResourceClaim, meant func(*resourceapi.DeviceRequestAllocationResult) bool,
	change func(*resourceapi.DeviceRequestAllocationResult, *resourceapi.AllocatedDeviceStatus) bool,
) (*resourceapi.ResourceClaim, bool) {
	out := c.DeepCopy()
	if out.Status.Allocation == nil {
		return out, false
	}
	changed := false
	for i := range out.Status.Allocation.Devices.Results {
		result := &out.Status.Allocation.Devices.Results[i]
		if meant(result) && change(result, entryOf(&out.Status, result)) {
			changed = true
		}
	}
	return out, changed
}

// entryOf is the entry of status.devices for an allocated device, made where there is none. Two requests with adminAccess may have
// the same device, which is listed once.
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

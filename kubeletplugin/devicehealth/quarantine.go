// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/record"
)

// reasonUndoFailed is the reason of the quarantine of devices whose claim could not be given back.
const reasonUndoFailed = "UndoFailed"

// Quarantine takes a claim's devices out of use, all of them: which one a step was about only the step knows, and the claim holds the
// others, too, until the step is undone.
func (k *Keeper) Quarantine(r *record.Record, cause error) {
	claim := "claim " + r.Namespace + "/" + r.Name
	if r.Name == "" {
		claim = "a claim whose record was lost"
	}
	message := fmt.Sprintf("%s (UID %s) cannot be given back: %v: tried again every minute", claim, r.UID, cause)
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.AdminAccess {
			k.note(context.Background(), k.ledger.Quarantine(d.Kind(), d.Name, reasonUndoFailed, message))
		}
	}
}

// Clear ends what Quarantine began.
func (k *Keeper) Clear(r *record.Record) {
	for i := range r.Devices {
		d := &r.Devices[i]
		if _, bad := k.ledger.Check(d.Name); bad && !d.AdminAccess {
			k.note(context.Background(), k.ledger.Clear(d.Name, reasonUndoFailed))
		}
	}
}

// Reason is the stable reason of an error of this package, empty for any other.
func Reason(err error) string {
	if errors.Is(err, ErrUnhealthy) {
		return "DeviceUnhealthy"
	}
	return ""
}

// Check says why an allocated device must not be given to a claim now. Degraded is good enough for a claim that has it already,
// and so is anything for an admin's look. A claim that tolerates the taint may have a device that failed, to find out why, but never
// one in quarantine.
func (k *Keeper) Check(c *resourceapi.ResourceClaim, r *claim.Result) error {
	s, bad := k.ledger.Check(r.Device)
	if !bad || s.State == health.Worn || r.AdminAccess {
		return nil
	}
	if s.State == health.Unhealthy && tolerated(c, r, inventory.Taint(s, k.File.Health.DisableEviction)) {
		return nil
	}
	return fmt.Errorf("device %s/%s %w: %s", r.Pool, r.Device, ErrUnhealthy, s.Message)
}

// tolerated says whether a result was allocated in spite of a taint.
func tolerated(c *resourceapi.ResourceClaim, r *claim.Result, taint resourceapi.DeviceTaint) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Request != r.Request || result.Pool != r.Pool || result.Device != r.Device {
			continue
		}
		if slices.ContainsFunc(result.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return true
		}
	}
	return false
}

// ErrUnhealthy is about a device that was healthy when the claim was allocated.
var ErrUnhealthy = errors.New("is not healthy, retried until it is, or delete the pod so that it gets another")

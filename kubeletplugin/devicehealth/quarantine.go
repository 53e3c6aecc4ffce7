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
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/record"
)

// reasonUndoFailed is the reason of the quarantine of devices whose claim could not be released.
const reasonUndoFailed = "UndoFailed"

// Quarantine takes all devices of a claim out of use. Only the step knows which device it failed for, and the claim holds the others, too,
// until the step is undone.
func (m *Monitor) Quarantine(r *record.Record, cause error) {
	claim := fmt.Sprintf("claim %s/%s, UID %s", r.Namespace, r.Name, r.UID)
	if r.Name == "" {
		claim = "a claim whose record was lost, UID " + r.UID
	}
	message := fmt.Sprintf("a claim of it cannot be released: %v: tried again every minute", cause)
	owned := health.Cause{Reason: reasonUndoFailed, Owner: r.UID, Message: message, Claim: claim}
	for i := range r.Devices {
		if d := &r.Devices[i]; !d.AdminAccess {
			m.logLedgerError(context.Background(), m.ledger.Quarantine(d.Kind(), d.Name, owned))
		}
	}
}

// Clear ends the claim's quarantine of its devices, but not that of a claim that shares one. It must not keep the claim from being
// released, so an error is logged, and endStale does the rest.
func (m *Monitor) Clear(r *record.Record) {
	for i := range r.Devices {
		d := &r.Devices[i]
		if _, bad := m.ledger.Check(d.Name); bad && !d.AdminAccess {
			m.logLedgerError(context.Background(), m.ledger.Clear(d.Name, reasonUndoFailed, r.UID))
		}
	}
}

// endStale ends the quarantines of claims that were released while the ledger could not be written.
func (m *Monitor) endStale() error {
	return m.ledger.EndStale(reasonUndoFailed, func(kind device.Kind, name, uid string) bool {
		return m.HeldBy(device.PoolName(m.Node, kind), name, uid)
	})
}

// Reason returns the stable reason of an error of this package, "" for any other.
func (m *Monitor) Reason(err error) (reason string, permanent bool) {
	if errors.Is(err, ErrUnhealthy) {
		return "DeviceUnhealthy", true
	}
	return "", false
}

// Check refuses an allocated device that a claim must not get now. It accepts a degraded device, since the claim has it already, and any
// device for admin access. A claim that tolerates the taint may have a device that failed, to find out why, but never one in quarantine.
func (m *Monitor) Check(c *resourceapi.ResourceClaim, r *claim.Result) error {
	s, _ := m.ledger.Check(r.Device)
	if v, _ := m.Holder.Get(); v != nil {
		if d, ok := v.Find(r.Kind, r.Device); ok && d.Parent != "" {
			if whole, _ := m.ledger.Check(d.Parent); whole.State.WorseThan(s.State) {
				s = whole
			}
		}
	}
	if !s.State.WorseThan(health.Worn) || r.AdminAccess {
		return nil
	}
	if s.State == health.Unhealthy && tolerated(c, r, inventory.Taint(s, m.File.Health.DisableEviction)) {
		return nil
	}
	return fmt.Errorf("device %s/%s %w: %s", r.Pool, r.Device, ErrUnhealthy, s.Message)
}

// tolerated reports whether a result was allocated in spite of a taint.
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

// ErrUnhealthy: the device failed after the claim was allocated.
var ErrUnhealthy = errors.New("is not healthy, retried until it is, or delete the pod so that it gets another")

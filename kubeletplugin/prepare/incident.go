// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Incident is something that people should know and that no call of kubelet's is answered with.
type Incident struct {
	// Reason is stable and fit for an Event's reason and a metric's label.
	Reason string
	// Namespace and Name are the claim's, where they are known.
	Namespace, Name, UID string
	Message              string
}

// The reasons of incidents.
const (
	ReasonRecordDamaged  = "RecordDamaged"
	ReasonRecordForeign  = "RecordForeign"
	ReasonRolledBack     = "RolledBack"
	ReasonRecoveryFailed = "RecoveryFailed"
	ReasonClaimCollected = "ClaimCollected"
	ReasonDeviceMoved    = "DeviceMoved"
	ReasonSpecRestored   = "SpecRestored"
	ReasonEffectLost     = "EffectLost"
)

// report tells the observer of an incident. It fills in the claim from its record, which may be nil.
func (e *Engine) report(ctx context.Context, reason string, r *record.Record, message string) {
	i := Incident{Reason: reason, Message: message}
	if r != nil {
		i.Namespace, i.Name, i.UID = r.Namespace, r.Name, r.UID
	}
	e.Observer.Incident(ctx, i)
}

// The reasons of refused claims.
const (
	reasonInUse      = "DeviceInUse"
	reasonDeviceGone = "DeviceGone"
	reasonPending    = "PreparePending"
	reasonOvertaken  = "PrepareOvertaken"
	reasonChipInUse  = "ChipInUse"
)

// Reason is the stable reason of an error of this package or of claims and records, empty for any other.
func Reason(err error) string {
	if refused, ok := errors.AsType[*claim.RefusedError](err); ok {
		return string(refused.Reason)
	}
	if _, ok := errors.AsType[*record.InUseError](err); ok {
		return reasonInUse
	}
	if _, ok := errors.AsType[*PendingError](err); ok {
		return reasonPending
	}
	if _, ok := errors.AsType[*TenantError](err); ok {
		return reasonChipInUse
	}
	switch {
	case Overtaken(err):
		return reasonOvertaken
	case errors.Is(err, record.ErrBusy):
		return reasonPending
	case errors.Is(err, ErrDeviceGone):
		return reasonDeviceGone
	}
	return ""
}

// Overtaken says whether a call came too late for what its claim is now. That is nothing to tell about the claim as it is.
func Overtaken(err error) bool {
	_, stale := errors.AsType[*record.StaleError](err)
	return stale || errors.Is(err, ErrChanged) || errors.Is(err, ErrOvertaken)
}

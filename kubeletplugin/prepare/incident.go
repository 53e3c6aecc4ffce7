// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Incident is an event of a claim outside of kubelet's calls.
type Incident struct {
	// Reason is stable. It is the reason of an Event and the label of a metric.
	Reason string
	// Namespace and Name are those of the claim, if they are known.
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
	ReasonClaimDeleted   = "ClaimDeleted"
	ReasonAbandoned      = "Abandoned"
)

// report sends an incident to the observer. The record identifies the claim and may be nil.
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
	reasonOverBudget = "OverBudget"
)

// Holder returns the claim that holds what a Prepare asked for, for the node's log, and "" if err is not about that. Another tenant may
// read the error itself, which does not name the claim.
func Holder(err error) string {
	if inUse, ok := errors.AsType[*record.InUseError](err); ok {
		return inUse.Holder()
	}
	if tenant, ok := errors.AsType[*conflict.TenantError](err); ok {
		return "claim " + tenant.Claim
	}
	if overlap, ok := errors.AsType[*conflict.OverlapError](err); ok {
		return "the claim with UID " + overlap.Owner.UID
	}
	return ""
}

// Reason returns the stable reason of an error of this package or of claims and records, and "" for any other.
func Reason(err error) string {
	if refused, ok := errors.AsType[*claim.RefusedError](err); ok {
		return string(refused.Reason)
	}
	switch {
	case is[*record.InUseError](err), is[*conflict.OverlapError](err):
		return reasonInUse
	case is[*conflict.MovedError](err), errors.Is(err, step.ErrReplaced):
		return ReasonDeviceMoved
	case is[*PendingError](err):
		return reasonPending
	case is[*conflict.TenantError](err):
		return reasonChipInUse
	case is[*budget.ExceededError](err):
		return reasonOverBudget
	case Overtaken(err):
		return reasonOvertaken
	case errors.Is(err, record.ErrBusy):
		return reasonPending
	case errors.Is(err, ErrDeviceGone):
		return reasonDeviceGone
	}
	return ""
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// Overtaken reports whether a call came too late for the present state of its claim. Such an error must not be shown on the claim.
func Overtaken(err error) bool {
	_, stale := errors.AsType[*record.StaleError](err)
	return stale || errors.Is(err, ErrChanged) || errors.Is(err, ErrOvertaken)
}

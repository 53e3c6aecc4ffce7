// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"time"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// ErrChanged refuses a call if the claim changed since the call arrived.
var ErrChanged = errors.New("changed while its Prepare waited: kubelet asks again if a pod still needs it")

// ErrDeviceGone is returned for a device that was published when the claim was allocated and has left since.
var ErrDeviceGone = errors.New("is not on this node any more, it left or its driver did")

// errNotScanned is returned while there is no result of a scan.
var errNotScanned = errors.New("the machine was not scanned yet: kubelet tries again")

// errShownLate is returned if the chip of a region was not known when the claim was locked, so that others may decide about it.
var errShownLate = errors.New("a region of the claim was not shown when the call began: kubelet tries again")

// errNotLost: the claim is used again, or may be.
var errNotLost = errors.New("is not lost")

// PendingError is the answer while the work on a claim continues. The next call waits for it or gets its result.
type PendingError struct {
	UID string
	// Activity is for example "is being prepared: applies step fpga.program (…)".
	Activity string
	For      time.Duration
	// Cause is the reason for which the call stopped waiting.
	Cause error
}

// Error describes the current activity.
func (e *PendingError) Error() string {
	return fmt.Sprintf("claim %s %s, for %s so far; it goes on in the background and kubelet's next try picks the result up (%v)",
		e.UID, e.Activity, e.For.Round(time.Millisecond), e.Cause)
}

// Unwrap returns the cause.
func (e *PendingError) Unwrap() error { return e.Cause }

// hungError reports a step that may never end. Its text does not change while the step hangs.
type hungError struct {
	activity string
	limit    time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("it %s, for longer than a call may take (%s)", e.activity, e.limit)
}

// ErrOvertaken cancels a Prepare when an Unprepare of the claim arrives.
var ErrOvertaken = errors.New("the claim is being unprepared")

var (
	errBudget  = errors.New("the call's time is used up")
	errStopped = errors.New("the plugin is stopping: kubelet asks the next one")
)

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

// Permanent reports whether a retry on this node soon would fail in the same way, as far as this package, claims and budgets know.
func Permanent(err error) bool {
	exceeded, over := errors.AsType[*budget.ExceededError](err)
	return is[*claim.RefusedError](err) || over && exceeded.Never || HeldByDeletedClaim(err)
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

// heldBy returns the holder of what an error refuses, and where the error says that the holder was deleted. It returns nil for an error
// that is about no holder.
func heldBy(err error) (owner *record.Record, deleted *bool) {
	if inUse, ok := errors.AsType[*record.InUseError](err); ok {
		return inUse.Owner, &inUse.Deleted
	}
	if overlap, ok := errors.AsType[*conflict.OverlapError](err); ok {
		return overlap.Owner, &overlap.Deleted
	}
	return nil, nil
}

// HeldByDeletedClaim reports whether a refusal lasts until the pod of a deleted claim ends.
func HeldByDeletedClaim(err error) bool {
	owner, deleted := heldBy(err)
	return owner != nil && *deleted
}

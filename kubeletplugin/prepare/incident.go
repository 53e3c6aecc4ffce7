// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"

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

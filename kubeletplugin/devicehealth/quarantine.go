// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"fmt"

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

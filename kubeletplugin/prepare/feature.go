// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"

	"github.com/fettle-dev/fettle/pkg/record"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Feature contributes to the preparation of a claim. Plan changes nothing that the claim would have to give back: every effect is a
// step. Files that no claim holds yet may be brought to the node by Plan, since a step has no network.
type Feature interface {
	// Name is the key of the feature's decision in a record. It must never change.
	Name() string
	// Plan decides what a claim gets. It is called when a claim is prepared for the first time in a boot.
	Plan(ctx context.Context, r Request) (Contribution, error)
	// Kinds are the effects that the feature owns. Two features never own the same kind.
	Kinds() step.Kinds
	// Leftovers returns the steps that a claim whose record is lost may have had for a device, so that they can be undone. The device is
	// the zero value where it is not on the machine any more.
	Leftovers(ctx context.Context, uid string, d device.Device) ([]step.Step, error)
}

// Adopter is a Feature that finds devices which no claim holds and which must be put right before any claim gets them.
type Adopter interface {
	Orphans() []Orphan
}

// Restorer is a Feature that can bring back what the steps of a claim's record need and cannot fetch, should the node have lost it.
type Restorer interface {
	Restore(ctx context.Context, r *record.Record) error
}

// Orphan is a device that no claim holds and that must be put right before any claim gets it.
type Orphan struct {
	// UID is that of the claim that left it, or stands for it.
	UID    string
	Device device.Device
}

// Request is what a Feature plans for.
type Request struct {
	Claim      *resourceapi.ResourceClaim
	Allocation claim.Allocation
	// Siblings are the claims that came in the same call, this one included or not.
	Siblings []*resourceapi.ResourceClaim
	// Find looks an allocated device up.
	Find Find
	// Again: the claim was prepared in an earlier boot. Decision is what the feature decided then, nil where it decided nothing. It still
	// holds; only what it means on the host is looked up again. Earlier are the steps of the feature's kinds in the claim's record.
	Again    bool
	Decision json.RawMessage
	Earlier  []step.Step
}

// EarlierStep returns the step of an earlier boot that has the same effect, if there was one.
func (r *Request) EarlierStep(s step.Step) (step.Step, bool) {
	for _, earlier := range r.Earlier {
		if earlier.Same(s) {
			return earlier, true
		}
	}
	return step.Step{}, false
}

// Find looks a result's device up.
type Find func(r *claim.Result) (device.Device, bool)

// Contribution is what a Feature adds to a claim. The zero value adds nothing.
type Contribution struct {
	// Edits are by the request's name without its alternative.
	Edits map[string]Edits
	// Steps are applied in their order and undone in reverse.
	Steps []step.Step
	// Decision is kept in the record and handed to Plan in a later boot. Nil: nothing was decided.
	Decision json.RawMessage
}

// Edits are what the containers that use a request get from a feature, beside the request's devices.
type Edits struct {
	// Shared are those that other claims may have as well, Own those that only this claim has.
	Shared, Own container.Edits
}

// Empty says that there is nothing to edit.
func (e *Edits) Empty() bool { return e.Shared.Empty() && e.Own.Empty() }

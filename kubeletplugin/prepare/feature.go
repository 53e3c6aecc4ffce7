// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/fettle-dev/fettle/pkg/record"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Feature contributes to the preparation of a claim. Every effect that the plugin must undo later is a step. Steps have no network, so what
// they need is on the node when they are planned. Plan runs while the claim's devices are locked, so a Fetcher brings it before.
type Feature interface {
	// Name returns the key of the feature's decision in a record. It must never change.
	Name() string
	// Plan decides what a claim gets. It is called at the first Prepare of the claim in each boot. Its context lets it ask no registry: with
	// artifact.ErrNotAsked the Fetcher is asked again.
	Plan(ctx context.Context, r Request) (Contribution, error)
	// Kinds returns the step kinds of the feature. No two features have the same kind.
	Kinds() step.Kinds
	// Leftovers returns the steps to undo for a device of a claim whose record is lost. The device is the zero value if it left the machine.
	Leftovers(ctx context.Context, uid string, d device.Device) ([]step.Step, error)
}

// Adopter is a Feature that finds orphans.
type Adopter interface {
	Orphans(ctx context.Context) []Orphan
}

// Owner is a Feature that finds the claims which have something of it on the node, such as mounts. Leftovers with the zero device undoes
// that.
type Owner interface {
	// Claims returns the UIDs of the claims, whether there is a record of them or not.
	Claims() ([]string, error)
}

// Maker is a Feature whose steps make parts of devices.
type Maker interface {
	// Made returns what a container needs of a part, by the name that is in the device's edits. It returns fs.ErrNotExist for a part that no
	// step of the feature made.
	Made(name string) (container.Edits, error)
}

// Settler is a Feature that knows what an administrator has decided for a device that several claims share.
type Settler interface {
	// Settle completes the configuration of a share with what its claim left open, before it is compared with those of other claims.
	Settle(r *claim.Result, d device.Device)
}

// Fetcher is a Feature that fetches files from a network for the claims that need them.
type Fetcher interface {
	// Fetch returns a function that fetches what Plan needs for a claim, or nil if that is nothing. It runs before Plan and before anything is
	// locked, so that a slow registry holds up no other claim. It may take longer than a call.
	Fetch(r *Request) func(ctx context.Context) error
}

// Restorer is a Feature that can restore lost files which the steps of a claim's record need and cannot fetch.
type Restorer interface {
	Restore(ctx context.Context, r *record.Record) error
}

// Orphan is a device that no claim holds and that must be repaired before any claim gets it.
type Orphan struct {
	// UID identifies the claim that left the device, or stands for it.
	UID    string
	Device device.Device
}

// Request is the input of Feature.Plan.
type Request struct {
	Claim *resourceapi.ResourceClaim
	// NamespaceUID is the UID of the claim's namespace, if the claim has regions. It is empty for a claim that an older version prepared.
	NamespaceUID string
	Allocation   claim.Allocation
	// Siblings are the claims of the same call. They may include this claim.
	Siblings []*resourceapi.ResourceClaim
	// Find returns an allocated device.
	Find Find
	// AfterReboot says that the claim was prepared in an earlier boot. Decision is the feature's decision of then, nil if there was none. It
	// still holds: Plan only looks up again what it means on the host. Earlier are the steps of the feature's kinds in the claim's record.
	AfterReboot bool
	Decision    json.RawMessage
	Earlier     []step.Step
}

// EarlierStep returns the step of an earlier boot with the same effect, if there was one.
func (r *Request) EarlierStep(s step.Step) (step.Step, bool) {
	for _, earlier := range r.Earlier {
		if earlier.Same(s) {
			return earlier, true
		}
	}
	return step.Step{}, false
}

// Find returns the device of a result.
type Find func(r *claim.Result) (device.Device, bool)

// Contribution is what a Feature adds to a claim. The zero value adds nothing.
type Contribution struct {
	// Edits has an entry for each request by its name, without the name of an alternative.
	Edits map[string]Edits
	// Steps are applied in this order and undone in reverse.
	Steps []step.Step
	// Decision is kept in the record and passed to Plan in a later boot. Nil: no decision.
	Decision json.RawMessage
}

// Edits are a feature's changes to the containers that use a request, beside the request's devices.
type Edits struct {
	// Shared are edits that other claims may have as well. Own are edits of this claim only.
	Shared, Own container.Edits
	// Givers names the object that mounts or sets something, by the path in the container or the variable. Errors name it.
	Givers map[string]string
}

// Empty reports whether there is nothing to edit.
func (e *Edits) Empty() bool { return e.Shared.Empty() && e.Own.Empty() }

// Features are all features, in the order in which they contribute to a claim.
type Features []Feature

// made asks the features that make parts.
func (all Features) made(name string) (container.Edits, error) {
	for _, f := range all {
		maker, ok := f.(Maker)
		if !ok {
			continue
		}
		edits, err := maker.Made(name)
		if !errors.Is(err, fs.ErrNotExist) {
			return edits, err
		}
	}
	return container.Edits{}, fmt.Errorf("part %s of a device: no step made it: %w", name, fs.ErrNotExist)
}

// settle has the features complete the configuration of a share.
func (all Features) settle(result *claim.Result, dev device.Device) {
	for _, f := range all {
		if s, ok := f.(Settler); ok {
			s.Settle(result, dev)
		}
	}
}

// restore has the features restore the files that the steps of a record need and cannot fetch.
func (all Features) restore(ctx context.Context, r *record.Record) error {
	for _, f := range all {
		restorer, ok := f.(Restorer)
		if !ok {
			continue
		}
		if err := restorer.Restore(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// leftovers returns the steps to undo for a device of a claim whose record is lost.
func (all Features) leftovers(ctx context.Context, uid string, dev device.Device) ([]step.Step, error) {
	var out []step.Step
	for _, f := range all {
		steps, err := f.Leftovers(ctx, uid, dev)
		if err != nil {
			return nil, err
		}
		out = append(out, steps...)
	}
	return out, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package prepare prepares and releases claims. Both walk over the record of the claim: the intent is written first, each step is applied
// or undone, and its result is written. Crash recovery, rollback, reboots and garbage collection walk over the same record.
//
// All state is on disk, under locks that other processes see, so two engines may serve the same node, as during a rolling update. A claim
// is locked before its devices. Claims without a common device never wait for each other.
//
// prepare.go has Engine.Prepare and Engine.Unprepare, step by step. The other files have what the steps use; each uses only those above it:
//
//	config.go, feature.go      what the engine is given
//	errors.go                  what it refuses
//	operation.go               who works on which claim, and who waits for whom
//	budget.go, record.go       claims' records: locks, reading, creation
//	specs.go                   CDI specs and effects: writing, checks, renewal
//	deleted.go                 claims that were deleted while their pods run
//	release.go                 the undoing of steps
//	recover.go                 interrupted claims, orphans, and each pass over all claims
//	engine.go                  the engine, which has a part for each of these
//	plan.go, planning.go       what a Prepare will do
//	prepare.go                 Prepare and Unprepare
//	collect.go                 the engine's passes, and the release of lost claims
package prepare

import (
	"context"
	"maps"
	"time"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Engine prepares claims on one node. It can lose its memory at any time: all state is on disk.
type Engine struct {
	Config
	// kinds are the step kinds of all features and the one that writes CDI specs.
	kinds      step.Kinds
	operations *operations
	records    *records
	specs      *cdiSpecs
	deleted    *deletedClaims
	releases   *releases
	collection *collection
}

// New returns an engine. It reads and changes nothing before Index.
func New(c Config) *Engine {
	e := &Engine{Config: c, kinds: kindsOf(&c)}
	e.operations = newOperations(&e.Config)
	e.records = &records{Config: &e.Config, holdings: holdings{store: c.Store, kinds: e.kinds}}
	e.specs = &cdiSpecs{Config: &e.Config, kinds: e.kinds, operations: e.operations, records: e.records}
	e.deleted = newDeletedClaims(&e.Config)
	e.releases = &releases{
		Config: &e.Config, kinds: e.kinds, operations: e.operations, records: e.records, deleted: e.deleted,
		recovering: map[string][]record.Device{}, abandoned: map[string][]string{},
	}
	e.collection = &collection{
		Config: &e.Config, operations: e.operations, records: e.records, specs: e.specs, releases: e.releases, deleted: e.deleted,
	}
	return e
}

// kindsOf merges the step kinds that claims can use.
func kindsOf(c *Config) step.Kinds {
	kinds := step.Kinds{cdi.StepKind: c.Specs.Kind(c.Features.made)}
	for _, f := range c.Features {
		maps.Copy(kinds, f.Kinds())
	}
	return kinds
}

// Stop cancels background work and waits up to 5 s for it. A step that hangs in a device ends with the process.
func (e *Engine) Stop() { e.operations.end() }

// Now returns the time with which calls are stamped.
func (e *Engine) Now() record.Moment { return record.Moment{BootID: e.BootID, Since: e.Uptime()} }

// Index reads every record, makes the links from devices to claims again, and finds interrupted claims. It applies and undoes nothing, so
// it is quick and runs before the first call is served. An unreadable record affects only its own claim.
func (e *Engine) Index(ctx context.Context) error { return e.collection.indexAll(ctx) }

// HasRecord reports whether a claim has a record that is not released, readable or not.
func (e *Engine) HasRecord(uid string) bool { return e.records.has(uid) }

// Recovering returns the devices, by pool and name, that no claim may get before an interrupted claim is undone, each with the UID of one
// such claim.
func (e *Engine) Recovering() map[[2]string]string { return e.releases.withheld() }

// Abandon gives up what the claims that are being released left on devices, as far as Undo finds something else in its place. An
// administrator knows that it will never come back, as from a disk that died. It counts for these claims alone, until this process ends.
func (e *Engine) Abandon(ctx context.Context, devices []string) { e.releases.abandon(ctx, devices) }

// SweepSpecs removes the spec files that neither a present device nor a claim needs. It locks and reads nothing unless there is a file that
// looks like a leftover.
func (e *Engine) SweepSpecs(ctx context.Context) error { return e.specs.sweep(ctx) }

// FollowDeleted finds claims that hold devices although the API server no longer has them, or gave them other devices. The scheduler takes
// such devices for free. It looks up all claims at the start and at each request, some every ten intervals, those that are known to be
// deleted every interval, and the holder of a device that another claim was refused. It returns when ctx ends.
func (e *Engine) FollowDeleted(ctx context.Context, interval time.Duration, requests <-chan struct{}) {
	e.deleted.follow(ctx, interval, requests)
}

// HeldByDeleted returns the devices, by pool and name, that deleted claims hold, each with the record of one such claim.
func (e *Engine) HeldByDeleted() map[[2]string]*record.Record { return e.deleted.held() }

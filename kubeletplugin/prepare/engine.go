// SPDX-License-Identifier: Apache-2.0

// Package prepare prepares and releases claims. Both walk over the record of the claim: the intent is written first, each step is applied
// or undone, and its result is written. Crash recovery, rollback, reboots and garbage collection walk over the same record.
//
// All state is on disk, under locks that other processes see, so two engines may serve the same node, as during a rolling update. A claim
// is locked before its devices. Claims without a common device never wait for each other.
package prepare

import (
	"context"
	"maps"
	"sync"
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

	mu sync.Mutex
	// recovering are the devices of interrupted claims, by the claims' UIDs. They are free only when all claims that share them are undone.
	recovering map[string][]record.Device
	// missed counts for each claim how many passes in a row found it gone, see collect.
	missed map[string]int
	// unrecorded are the claims with undone steps that could not be written to their records.
	unrecorded sync.Map
	// abandoned are the claims that Abandon named.
	abandoned sync.Map
}

// New returns an engine. It reads and changes nothing before Index.
func New(c Config) *Engine {
	e := &Engine{
		Config: c, kinds: kindsOf(&c), recovering: map[string][]record.Device{}, missed: map[string]int{},
	}
	e.operations = newOperations(&e.Config)
	e.records = &records{Config: &e.Config, kinds: e.kinds}
	e.specs = &cdiSpecs{Config: &e.Config, kinds: e.kinds, operations: e.operations, records: e.records}
	e.deleted = newDeletedClaims(&e.Config)
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

// Recovering returns the devices, by pool and name, that no claim may get before an interrupted claim is undone, each with the UID of one
// such claim.
func (e *Engine) Recovering() map[[2]string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := map[[2]string]string{}
	for uid, devices := range e.recovering {
		for i := range devices {
			d := &devices[i]
			key := [2]string{d.Pool, d.Name}
			if before, ok := held[key]; !d.AdminAccess && (!ok || uid < before) {
				held[key] = uid
			}
		}
	}
	return held
}

func (e *Engine) setRecovering(r *record.Record, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if on {
		e.recovering[r.UID] = r.Devices
	} else {
		delete(e.recovering, r.UID)
	}
}

// HasRecord reports whether a claim has a record that is not released, readable or not.
func (e *Engine) HasRecord(uid string) bool { return e.records.has(uid) }

// SweepSpecs removes the spec files that neither a present device nor a claim needs. It locks and reads nothing unless there is a file that
// looks like a leftover.
func (e *Engine) SweepSpecs(ctx context.Context) error { return e.specs.sweep(ctx) }

// FollowDeleted finds claims that hold devices although the API server no longer has them, or gave them other devices. The scheduler takes
// such devices for free. It looks up all claims at the start and at each request, some at each interval, and the holder of a device that
// another claim was refused. It returns when ctx ends.
func (e *Engine) FollowDeleted(ctx context.Context, interval time.Duration, requests <-chan struct{}) {
	e.deleted.follow(ctx, interval, requests)
}

// HeldByDeleted returns the devices, by pool and name, that deleted claims hold, each with the record of one such claim.
func (e *Engine) HeldByDeleted() map[[2]string]*record.Record { return e.deleted.held() }

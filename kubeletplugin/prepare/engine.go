// SPDX-License-Identifier: Apache-2.0

// Package prepare prepares and releases claims. Both walk over the record of the claim: the intent is written first, each step is applied
// or undone, and its result is written. Crash recovery, rollback, reboots and garbage collection walk over the same record.
//
// All state is on disk, under locks that other processes see, so two engines may serve the same node, as during a rolling update. A claim
// is locked before its devices. Claims without a common device never wait for each other.
package prepare

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Engine prepares claims on one node. It can lose its memory at any time: all state is on disk.
type Engine struct {
	Config
	// kinds are the step kinds of all features and the one that writes CDI specs.
	kinds      step.Kinds
	operations *operations

	mu sync.Mutex
	// recovering are the devices of interrupted claims, by the claims' UIDs. They are free only when all claims that share them are undone.
	recovering map[string][]record.Device
	// deleted are the records of claims that hold devices and are gone from the API server.
	deleted map[string]*record.Record
	// suspects are the UIDs of claims that hold what another claim was refused.
	suspects chan string
	// missed counts for each claim how many passes in a row found it gone, see collect.
	missed   map[string]int
	holdings holdings
	// unrecorded are the claims with undone steps that could not be written to their records.
	unrecorded sync.Map
	// abandoned are the claims that Abandon named.
	abandoned sync.Map
}

// New returns an engine. It reads and changes nothing before Index.
func New(c Config) *Engine {
	e := &Engine{
		Config: c, kinds: kindsOf(&c), recovering: map[string][]record.Device{}, missed: map[string]int{},
		deleted: map[string]*record.Record{}, suspects: make(chan string, maxSuspects),
	}
	e.operations = newOperations(&e.Config)
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

// HasRecord reports whether a claim has a record that is not released, readable or not.
func (e *Engine) HasRecord(uid string) bool {
	r, err := e.Store.Load(uid)
	if err == nil {
		return !r.Released()
	}
	return !isNotExist(err) || e.Store.InDoubt(uid)
}

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

// lock locks a claim, the devices of its allocation and those of its record. It returns the record, or nil if there is none. A damaged
// record is set aside.
func (e *Engine) lock(ctx context.Context, op *operation, uid string, devices []string) (*record.Hold, *record.Record, error) {
	op.setActivity("waits for other work on the claim")
	hold, err := e.Store.LockClaim(ctx, uid)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.load(ctx, uid)
	if err == nil {
		op.inDoubt = r == nil && e.Store.InDoubt(uid)
		op.setActivity("waits for its devices")
		err = hold.Devices(ctx, append(devices, heldNames(e.linkedDevices(op, r))...))
	}
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	return hold, r, nil
}

// linkedDevices returns the devices of a record. If the record is lost, it finds the devices with a link of the claim.
func (e *Engine) linkedDevices(op *operation, r *record.Record) []record.Device {
	if r != nil {
		return r.Devices
	}
	machine := e.Machine()
	if machine == nil || !op.inDoubt {
		return nil
	}
	var all []record.Device
	for _, d := range machine.All() {
		all = append(all, record.Device{Pool: device.PoolName(e.Node, d.Kind), Name: d.Name})
	}
	return e.Store.LinkedTo(op.uid, all)
}

// load reads a record and returns nil if there is none. The caller has locked the claim.
func (e *Engine) load(ctx context.Context, uid string) (*record.Record, error) {
	r, err := e.Store.Load(uid)
	switch {
	case isNotExist(err):
		return nil, nil //nolint:nilnil // documented above
	case errors.Is(err, record.ErrDamaged):
		if aside := e.Store.SetAside(uid); aside != nil {
			return nil, errors.Join(err, aside)
		}
		e.report(ctx, ReasonRecordDamaged, &record.Record{UID: uid}, err.Error()+
			": it was set aside; the claim is prepared again or given back when kubelet asks")
		return nil, nil //nolint:nilnil // documented above
	}
	return r, err
}

// SPDX-License-Identifier: Apache-2.0

// Package prepare prepares claims and gives them back. Both are a walk over the claim's record: what is meant to happen is written
// down first, each step is applied or undone, and what became of it is noted. Crash recovery, rollback, reboots and garbage
// collection are the same walk over the same record.
//
// All truth is on disk under locks that other processes see, so two engines may serve the same node, as they do during a rolling
// update. A claim is locked before its devices; claims that have no device in common never wait for each other.
package prepare

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Config is what an engine works with. All of it is needed.
type Config struct {
	// Node is the name of the Node object.
	Node string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	Store  *record.Store
	Specs  *cdi.Dir
	// Features contribute to each claim, in this order. Their leftovers are undone in reverse.
	Features []Feature
	// Machine is the newest look at the machine, nil before the first.
	Machine func() Machine
	Health  Health
	// Claim reads a claim from the API server. Its errors are those of package api/errors.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// KubeletState is the path of kubelet's dra_manager_state. Empty: no claim is ever collected.
	KubeletState string
	// Uptime is CLOCK_BOOTTIME.
	Uptime func() time.Duration
	// Budget is how long a call waits for what goes on in the background. It is below kubelet's 45 s.
	Budget   time.Duration
	Observer Observer
}

// Health knows which devices must not be given to claims.
type Health interface {
	// Check returns why an allocated device must not be given to a claim that does not have it yet.
	Check(c *resourceapi.ResourceClaim, r *claim.Result) error
	// Quarantine keeps a record's devices from all other claims, whatever becomes of the record, since a step of it could not be undone.
	// Clear takes that back.
	Quarantine(r *record.Record, cause error)
	Clear(r *record.Record)
}

// Observer is told what no call of kubelet's is answered with. It must not block.
type Observer interface {
	// Incident tells people and metrics what happened outside of kubelet's calls.
	Incident(ctx context.Context, i Incident)
	// Released is called once nothing more is done about a claim whose Unprepare was answered.
	Released(r *record.Record)
}

// Machine is one look at the node's devices.
type Machine interface {
	Find(kind device.Kind, name string) (device.Device, bool)
	All() []device.Device
}

// Engine prepares claims on one node. Its memory holds only what may be forgotten.
type Engine struct {
	Config
	// kinds are the effects of all features, and that of writing CDI specs.
	kinds step.Kinds
	// base ends when the engine is stopped: what goes on in the background is cut off, to be found by the next process.
	base context.Context //nolint:containedctx // it is the life of the background work, not of one call
	stop context.CancelFunc
	wg   sync.WaitGroup
	// afterwards runs what is left to do of an operation that was answered, at once.
	afterwards func(later func())

	mu         sync.Mutex
	operations map[string]*operation
	// recovering are the devices of claims that were found half prepared or half given back, with the claim's UID.
	recovering map[[2]string]string
	// missed counts how often in a row a claim was seen to be nobody's.
	missed map[string]int
	// unnoted are the UIDs of claims of which more may be undone than their records say, since the disk took no note of it.
	unnoted sync.Map
}

// New makes an engine. Nothing is read or changed before Index.
func New(c Config) *Engine {
	base, stop := context.WithCancel(context.Background())
	return &Engine{
		Config: c, kinds: kindsOf(c), base: base, stop: stop, afterwards: func(later func()) { later() }, operations: map[string]*operation{},
		recovering: map[[2]string]string{}, missed: map[string]int{},
	}
}

// kindsOf are the effects that a claim can have.
func kindsOf(c Config) step.Kinds {
	kinds := step.Kinds{cdi.StepKind: c.Specs.Kind()}
	for _, f := range c.Features {
		maps.Copy(kinds, f.Kinds())
	}
	return kinds
}

// Stop cuts off what goes on in the background and waits a moment for it. What is stuck in a device ends with the process.
func (e *Engine) Stop() {
	const patience = 5 * time.Second
	e.mu.Lock() // nothing begins from now on
	e.stop()
	e.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		e.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
	}
}

// Now is this moment as calls are stamped with it.
func (e *Engine) Now() record.Moment { return record.Moment{BootID: e.BootID, Since: e.Uptime()} }

// Knows says whether a claim has a record that is not released, readable or not.
func (e *Engine) Knows(uid string) bool {
	r, err := e.Store.Load(uid)
	if err == nil {
		return !r.Released()
	}
	return !isNotExist(err) || e.Store.InDoubt(uid)
}

// Recovering are the devices that no claim may be given yet, POOL and name, with the UID of the claim that has to be undone first.
func (e *Engine) Recovering() map[[2]string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.recovering)
}

func (e *Engine) setRecovering(r *record.Record, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range r.Devices {
		d := &r.Devices[i]
		key := [2]string{d.Pool, d.Name}
		switch {
		case d.AdminAccess:
		case on:
			e.recovering[key] = r.UID
		case e.recovering[key] == r.UID:
			delete(e.recovering, key)
		}
	}
}

// lock takes a claim and the devices of its allocation and of its record, and returns the record, nil where there is none. A
// damaged record is set aside.
func (e *Engine) lock(ctx context.Context, op *operation, uid string, devices []string) (*record.Hold, *record.Record, error) {
	op.is("waits for its turn")
	hold, err := e.Store.LockClaim(ctx, uid)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.load(ctx, uid)
	if err == nil {
		op.inDoubt = r == nil && e.Store.InDoubt(uid)
		op.is("waits for its devices")
		err = hold.Devices(ctx, append(devices, namesOf(e.linked(op, r))...))
	}
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	return hold, r, nil
}

// linked are the devices of a record or, where that is lost, those whose links name the claim.
func (e *Engine) linked(op *operation, r *record.Record) []record.Device {
	if r != nil {
		return r.Devices
	}
	machine := e.Machine()
	if machine == nil || !op.inDoubt {
		return nil
	}
	var all []record.Device
	for _, d := range machine.All() {
		all = append(all, record.Device{Pool: e.poolOf(d), Name: d.Name})
	}
	return e.Store.LinkedTo(op.uid, all)
}

func (e *Engine) poolOf(d device.Device) string { return e.Node + "/" + string(d.Kind) }

// load reads a record, nil where there is none. The caller holds the claim.
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
			": it was set aside; the claim is prepared anew or given back when kubelet asks")
		return nil, nil //nolint:nilnil // documented above
	}
	return r, err
}

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
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Config has the settings and services of an engine. All are required but KubeletState.
type Config struct {
	// Node is the name of the Node object.
	Node string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	Store  *record.Store
	Specs  *cdi.Dir
	// Names names the CDI devices of new claims.
	Names *cdi.Names
	// Features contribute to each claim, in this order. The leftovers of a lost record are undone in reverse order.
	Features []Feature
	// Machine returns the result of the newest scan, nil before the first.
	Machine func() Machine
	Health  Health
	// Claim reads a claim from the API server. Its errors are those of package api/errors.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// NamespaceUID reads the UID of a namespace from the API server. It is asked for claims with regions only.
	NamespaceUID func(ctx context.Context, name string) (string, error)
	// Classes returns the DeviceClasses of these names as they are now, without those that do not exist.
	Classes func(ctx context.Context, names []string) (map[string]*resourceapi.DeviceClass, error)
	// KubeletState is the path of kubelet's dra_manager_state, or of the socket of fettle-claims. If it is empty, no claim is collected.
	KubeletState string
	// Uptime returns CLOCK_BOOTTIME.
	Uptime func() time.Duration
	// Budget is how long a call waits for background work. It is below kubelet's 45 s.
	Budget   time.Duration
	Observer Observer
	// Limits are the most that claims may hold of what the steps of the features need.
	Limits budget.Limits
}

// Health says which devices claims must not get.
type Health interface {
	// Check refuses an allocated device that a claim without devices must not get.
	Check(c *resourceapi.ResourceClaim, r *claim.Result) error
	// Quarantine withholds a record's devices from all other claims after a step could not be undone. Clear ends that, unless another record
	// still withholds a device that both share.
	Quarantine(r *record.Record, cause error)
	Clear(r *record.Record)
}

// Observer receives reports about claims outside of kubelet's calls. Its methods must not block.
type Observer interface {
	// Incident reports something that no answer to kubelet contains.
	Incident(ctx context.Context, i Incident)
	// Released is called when all work on an unprepared claim is done, after kubelet has its answer.
	Released(r *record.Record)
	// DeletedChanged is called when HeldByDeleted returns something else than before.
	DeletedChanged()
}

// Machine is the result of one scan of the node's devices.
type Machine = conflict.Machine

// Engine prepares claims on one node. It can lose its memory at any time: all state is on disk.
type Engine struct {
	Config
	// kinds are the step kinds of all features and the one that writes CDI specs.
	kinds step.Kinds
	// base ends when the engine is stopped. That cancels background work, which the next process finds in the records.
	base context.Context //nolint:containedctx // it is the life of the background work, not of one call
	stop context.CancelFunc
	wg   sync.WaitGroup
	// runFollowUp runs the rest of an operation that was answered. Tests delay it.
	runFollowUp func(followUp func())

	mu         sync.Mutex
	operations map[string]*operation
	// calls are the calls of do that were not answered yet, by claim and in the order in which they came.
	calls map[string][]*call
	// recovering are the devices of interrupted claims, by the claims' UIDs. They are free only when all claims that share them are undone.
	recovering map[string][]record.Device
	// deleted are the records of claims that hold devices and are gone from the API server.
	deleted map[string]*record.Record
	// suspects are the UIDs of claims that hold what another claim was refused.
	suspects chan string
	// missed counts for each claim how many passes in a row found it gone, see collect.
	missed   map[string]int
	holdings holdings
	// attended are the claims for which a pass does something, see attend.
	attended sync.Map
	// unrecorded are the claims with undone steps that could not be written to their records.
	unrecorded sync.Map
	// abandoned are the claims that Abandon named.
	abandoned sync.Map
}

// New returns an engine. It reads and changes nothing before Index.
func New(c Config) *Engine {
	base, stop := context.WithCancel(context.Background())
	return &Engine{
		Config: c, kinds: kindsOf(c), base: base, stop: stop, runFollowUp: func(followUp func()) { followUp() },
		operations: map[string]*operation{}, calls: map[string][]*call{}, recovering: map[string][]record.Device{}, missed: map[string]int{},
		deleted: map[string]*record.Record{}, suspects: make(chan string, maxSuspects),
	}
}

// kindsOf merges the step kinds that claims can use.
func kindsOf(c Config) step.Kinds {
	kinds := step.Kinds{cdi.StepKind: c.Specs.Kind(c.made)}
	for _, f := range c.Features {
		maps.Copy(kinds, f.Kinds())
	}
	return kinds
}

// Stop cancels background work and waits up to 5 s for it. A step that hangs in a device ends with the process.
func (e *Engine) Stop() {
	const patience = 5 * time.Second
	e.mu.Lock() // no operation starts from now on
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

// SPDX-License-Identifier: Apache-2.0

// Package record keeps what this node has promised to each claim: one small file a claim, written before any effect and
// removed after the last effect is undone. All truth is on disk, since during a rolling update two plugins serve the same
// claims; a Store only remembers where the files are.
//
// The types are the package's own and never embed a Kubernetes type, so that a library upgrade cannot change what an old file
// means.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Record is what one claim holds on this node.
type Record struct {
	// Namespace, Name and UID identify the ResourceClaim. The UID alone names the file.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// BootID is /proc/sys/kernel/random/boot_id at Prepare. Effects and device numbers do not outlive it.
	BootID string `json:"bootID"`
	// Phase is how far the claim is as a whole.
	Phase Phase `json:"phase"`
	// Devices are the allocated devices in the order of the allocation.
	Devices []Device `json:"devices"`
	// Steps are the effects on the machine, in the order they are applied. They are undone in reverse.
	Steps []Step `json:"steps,omitempty"`
	// Decisions are what features decided for the claim, by the feature's name and in its own words. They hold in later boots.
	Decisions map[string]json.RawMessage `json:"decisions,omitempty"`

	// valid is how much of the file was understood; what follows was torn off when a process or the power went.
	valid int64
	torn  bool
	// lasting: that the claim holds nothing outlives a power loss, or that it is being given back does, which Promise makes so.
	lasting bool
}

// Step is one effect and how far it is.
type Step struct {
	step.Step
	State step.State `json:"state"`
}

// Device is one allocated device and the edits its container was promised.
type Device struct {
	// Request is the allocation's request name, "main/sub" for an alternative of firstAvailable.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	// ShareID tells apart the shares of one device. Empty: the whole device.
	ShareID string `json:"shareID,omitempty"`
	// AdminAccess marks a look: it holds nothing and has no effect (KEP-5018).
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Effect identifies the effective configuration of a share. Shares of one device must have equal effects.
	Effect string `json:"effect,omitempty"`
	// CoTenancy says who may hold other regions of the same chip meanwhile. Empty for what is no region of a chip.
	CoTenancy string `json:"coTenancy,omitempty"`
	// CDIDevice is the qualified CDI device name that kubelet was told. What it means must not change while the record lives.
	CDIDevice string          `json:"cdiDevice"`
	Edits     container.Edits `json:"edits"`
	// Added is what features add for the device's request. The first device of a request has it.
	Added *Addition `json:"preset,omitempty"`
}

// CDIDevices are the qualified CDI devices that kubelet was told.
func (d *Device) CDIDevices() []string {
	all := []string{d.CDIDevice}
	if d.Added != nil {
		all = append(all, d.Added.CDIDevice, d.Added.OwnDevice)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// Addition is what features add to the devices of a request.
type Addition struct {
	// CDIDevice is as that of a Device. Empty: there is nothing that other claims could have, too.
	CDIDevice string          `json:"cdiDevice,omitempty"`
	Edits     container.Edits `json:"edits"`
	// OwnDevice and Own are the same of what only this claim has.
	OwnDevice string          `json:"ownDevice,omitempty"`
	Own       container.Edits `json:"own,omitzero"`
	// Given is where format 3 has decisions, see Record.Decisions. It is only set in files.
	Given json.RawMessage `json:"given,omitempty"`
}

// Phase is how far a claim is.
type Phase string

// The phases.
const (
	// Intended: the steps may or may not have happened, and nobody was told that they did. What is found so after a crash is undone.
	Intended Phase = "intended"
	// Prepared: every step is done, and kubelet may have been told.
	Prepared Phase = "prepared"
	// Renewing: the claim was prepared in an earlier boot and its effects are being applied again. What its pod wrote is its own.
	Renewing Phase = "renewing"
	// Releasing: steps are being undone. There is no way back. With the last of them the record is released.
	Releasing Phase = "releasing"
)

// Released says whether everything is undone. The claim holds nothing then, and its record counts as none: whoever meets it removes it.
func (r *Record) Released() bool { return r.Phase == Releasing && r.allSteps(step.Undone) }

// nextPhases is the table of legal changes.
func nextPhases(p Phase) []Phase {
	switch p {
	case Intended:
		return []Phase{Prepared, Releasing}
	case Prepared:
		return []Phase{Renewing, Releasing}
	case Renewing:
		return []Phase{Prepared, Renewing, Releasing}
	case Releasing:
	}
	return nil
}

// Change is one thing that happens to a record: a phase is reached, or a step changes its state.
type Change struct {
	Phase Phase `json:"phase,omitempty"`
	// Step is an index of Steps. It counts where State is set.
	Step  int        `json:"step,omitempty"`
	State step.State `json:"state,omitempty"`
}

// ErrIllegal is returned for a change that the tables do not allow. It is a fault of the program, or of a file.
var ErrIllegal = errors.New("illegal change of a record")

// check says whether a change may happen now.
func (r *Record) check(c Change) error {
	var why string
	switch {
	case (c.Phase == "") == (c.State == ""):
		why = "want a phase or a step's state"
	case c.Phase != "":
		why = r.checkPhase(c.Phase)
	default:
		why = r.checkStep(c.Step, c.State)
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w: claim %s/%s, phase %s, to %+v: %s", ErrIllegal, r.Namespace, r.Name, r.Phase, c, why)
}

// Clone is a record that stays as it is while the other goes on.
func (r *Record) Clone() *Record {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	return &c
}

// after is what a record becomes by changes, and what is appended to its file for them.
func (r *Record) after(changes []Change) (next *Record, appended []byte, err error) {
	next = r.Clone()
	for _, c := range changes {
		if err := next.check(c); err != nil {
			return nil, nil, err
		}
		next.apply(c)
		data, err := frame(head{}, c)
		if err != nil {
			return nil, nil, fmt.Errorf("record claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		appended = append(appended, data...)
	}
	return next, appended, nil
}

// checkPhase says why a phase may not follow, nothing where it may.
func (r *Record) checkPhase(to Phase) string {
	switch {
	case to == Renewing:
		return "a renewal replaces the record"
	case !slices.Contains(nextPhases(r.Phase), to):
		return "no such change of phase"
	case to == Prepared && !r.allSteps(step.Done):
		return "a step is not done"
	}
	return ""
}

// checkStep says why a step may not get a state, nothing where it may.
func (r *Record) checkStep(index int, to step.State) string {
	switch {
	case index < 0 || index >= len(r.Steps):
		return fmt.Sprintf("there are %d steps", len(r.Steps))
	case !r.Steps[index].State.Next(to):
		return "the step is " + string(r.Steps[index].State)
	case to == step.Undone && r.Phase != Releasing:
		return "steps are undone only while the claim is released"
	case to == step.Done && r.Phase != Intended && r.Phase != Renewing:
		return "steps are done only while the claim is prepared"
	}
	return ""
}

// apply makes a change that check allowed.
func (r *Record) apply(c Change) {
	if c.Phase != "" {
		r.Phase = c.Phase
		return
	}
	r.Steps[c.Step].State = c.State
}

// checkNew says whether a record may begin like this.
func (r *Record) checkNew() error {
	illegal := func(why string) error {
		return fmt.Errorf("%w: claim %s/%s begins as %q: %s", ErrIllegal, r.Namespace, r.Name, r.Phase, why)
	}
	switch r.Phase {
	case Prepared:
		if len(r.Steps) > 0 {
			return illegal("its steps are not done")
		}
	case Intended, Renewing:
		if !r.allSteps(step.Intended) {
			return illegal("a step has another state than intended")
		}
	case Releasing:
		// A claim whose file was lost is given back from what the devices tell.
		known := func(s Step) bool { return s.State == step.Intended || s.State == step.Done || s.State == step.Undone }
		if slices.ContainsFunc(r.Steps, func(s Step) bool { return !known(s) }) {
			return illegal("a step has no state")
		}
	default:
		return illegal("no such phase")
	}
	return nil
}

func (r *Record) allSteps(state step.State) bool {
	return !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.State != state })
}

// Kind is the kind of device, from its pool's name.
func (d *Device) Kind() device.Kind {
	_, kind, _ := strings.Cut(d.Pool, "/")
	return device.Kind(kind)
}

// Holds says whether the claim holds a device, rather than looks at it.
func (r *Record) Holds(pool, name string) bool {
	return slices.ContainsFunc(r.Devices, func(d Device) bool { return d.Pool == pool && d.Name == name && !d.AdminAccess })
}

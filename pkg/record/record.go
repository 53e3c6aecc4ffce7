// SPDX-License-Identifier: Apache-2.0

// Package record keeps what each claim holds on this node: one small file for each claim, written before any effect and removed after the
// last effect is undone. All state is on disk, since during a rolling update two plugins serve the same claims. A Store only knows where
// the files are.
//
// The types belong to this package and never embed a Kubernetes type, so that a library upgrade cannot change the meaning of an old file.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Record says what one claim holds on this node.
type Record struct {
	// Namespace, Name and UID identify the ResourceClaim. The UID alone names the file.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// NamespaceUID is the UID of the claim's namespace, for a claim with regions. It is empty for any other, and in records of versions before
	// this field, which ignore it.
	NamespaceUID string `json:"namespaceUID,omitempty"`
	// BootID is /proc/sys/kernel/random/boot_id at Prepare. Effects and device numbers do not outlive it.
	BootID string `json:"bootID"`
	// Phase is the progress of the claim as a whole.
	Phase Phase `json:"phase"`
	// Devices are the allocated devices in the order of the allocation.
	Devices []Device `json:"devices"`
	// Steps are the effects on the machine, in the order in which they are applied. They are undone in reverse order.
	Steps []Step `json:"steps,omitempty"`
	// Decisions holds what features decided for the claim, by the name of the feature and in its own format. It also holds in later boots.
	Decisions map[string]json.RawMessage `json:"decisions,omitempty"`

	// valid is how much of the file was understood. What follows was torn when a process or the power ended.
	valid int64
	torn  bool
	// durable says that the release of the claim survives a power loss: either the claim holds nothing, or MarkReleasing has noted that it is
	// being released.
	durable bool
}

// Step is one effect and its progress.
type Step struct {
	step.Step
	State step.State `json:"state"`
}

// Device is one allocated device and the edits that its container was promised.
type Device struct {
	// Request is the allocation's request name, "main/sub" for an alternative of firstAvailable.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	// ShareID tells the shares of one device apart. It is empty for a whole device.
	ShareID string `json:"shareID,omitempty"`
	// AdminAccess marks access for a look: it holds nothing and has no effect (KEP-5018).
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Effect identifies the effective configuration of a share. Shares of one device must have equal effects.
	Effect string `json:"effect,omitempty"`
	// Setting is what Effect stands for in words, and Memory how many bytes of the device's memory the share was granted.
	Setting string `json:"setting,omitempty"`
	Memory  int64  `json:"memory,omitempty"`
	// CoTenancy says which claims may hold other regions of the same chip meanwhile. It is empty for a device that is not a region.
	CoTenancy string `json:"coTenancy,omitempty"`
	// Consumes is what the device takes of the counters of its card: each counter's name and a quantity. It is empty for a device that is no
	// part of a card.
	Consumes map[string]string `json:"consumes,omitempty"`
	// CDIDevice is the qualified CDI device name that kubelet got. Its meaning must not change while the record exists.
	CDIDevice string          `json:"cdiDevice"`
	Edits     container.Edits `json:"edits"`
	// Place is where the device was when the claim got it, in the boot of the record, see device.Device. Versions before this field ignore it.
	Place container.Place `json:"place,omitzero"`
	// Added is what features add for the device's request. The first device of a request has it.
	Added *Addition `json:"preset,omitempty"`
}

// CDIDevices lists the qualified CDI device names that kubelet got.
func (d *Device) CDIDevices() []string {
	all := []string{d.CDIDevice}
	if d.Added != nil {
		all = append(all, d.Added.CDIDevice, d.Added.OwnDevice)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// Addition is what features add to the devices of a request.
type Addition struct {
	// CDIDevice is the CDI device with Edits. It is empty if there is nothing that other claims could have, too.
	CDIDevice string          `json:"cdiDevice,omitempty"`
	Edits     container.Edits `json:"edits"`
	// OwnDevice is the CDI device with Own, which only this claim has.
	OwnDevice string          `json:"ownDevice,omitempty"`
	Own       container.Edits `json:"own,omitzero"`
	// Given is where format 3 has decisions, see Record.Decisions. It is only set in files.
	Given json.RawMessage `json:"given,omitempty"`
}

// Phase is the progress of a claim.
type Phase string

// The phases.
const (
	// Intended: steps may have been applied, and kubelet has no answer yet. After a crash the plugin undoes them.
	Intended Phase = "intended"
	// Prepared: all steps are done, and kubelet may have its answer.
	Prepared Phase = "prepared"
	// Renewing: the claim was prepared in an earlier boot, and its effects are being applied again. It keeps the data of its pod.
	Renewing Phase = "renewing"
	// Releasing: steps are being undone. There is no way back. When all are undone, the record is released.
	Releasing Phase = "releasing"
)

// Released reports whether all steps are undone. The claim then holds nothing. Its record counts as none, and whichever caller finds it
// removes it.
func (r *Record) Released() bool { return r.Phase == Releasing && r.allSteps(step.Undone) }

// nextPhases is the table of legal changes of the phase.
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

// Change is one change of a record: a new phase, or a new state of a step.
type Change struct {
	Phase Phase `json:"phase,omitempty"`
	// Step is an index of Steps. It counts if State is set.
	Step  int        `json:"step,omitempty"`
	State step.State `json:"state,omitempty"`
}

// ErrIllegal is returned for a change that the tables do not allow. The program or a file is wrong then.
var ErrIllegal = errors.New("illegal change of a record")

// check refuses a change that may not happen now.
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

// Clone returns a copy that later changes of the record do not touch.
func (r *Record) Clone() *Record {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	return &c
}

// withChanges returns the record after changes, and the bytes to append to its file.
func (r *Record) withChanges(changes []Change) (next *Record, appended []byte, err error) {
	next = r.Clone()
	for _, c := range changes {
		if err := next.check(c); err != nil {
			return nil, nil, err
		}
		next.apply(c)
		data, err := encodeFrame(head{}, c)
		if err != nil {
			return nil, nil, fmt.Errorf("record claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		appended = append(appended, data...)
	}
	return next, appended, nil
}

// checkPhase says why a phase may not follow, or returns "".
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

// checkStep says why a step may not get a state, or returns "".
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

// apply makes a change that check has allowed.
func (r *Record) apply(c Change) {
	if c.Phase != "" {
		r.Phase = c.Phase
		return
	}
	r.Steps[c.Step].State = c.State
}

// checkNew refuses a record that may not begin like this.
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
		// The record of a claim whose file was lost is made from the links and the devices.
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

// Kind returns the kind of the device, from the name of its pool.
func (d *Device) Kind() device.Kind {
	_, kind, _ := device.SplitPool(d.Pool)
	return kind
}

// Held returns the entry of a device that the claim holds, nil if it holds none. Another entry of the device may be admin access, which
// holds nothing.
func (r *Record) Held(pool, name string) *Device {
	i := slices.IndexFunc(r.Devices, func(d Device) bool { return d.Pool == pool && d.Name == name && !d.AdminAccess })
	if i < 0 {
		return nil
	}
	return &r.Devices[i]
}

// Holds reports whether the claim holds a device. Admin access does not.
func (r *Record) Holds(pool, name string) bool { return r.Held(pool, name) != nil }

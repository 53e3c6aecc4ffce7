// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// nowhere is a request that no claim has.
const nowhere = "nowhere"

// given is what the feature of tests adds to a request, and the word that it decided.
type given struct {
	Edits
	steps []step.Step
	word  string
}

// resolved is what the feature decides for requests, and what it was told of earlier decisions.
type resolved struct {
	give   map[string]given
	err    error
	before []json.RawMessage
}

// resolve decides, or looks up what an earlier decision finds now: that has the word as its variable's value.
func (p *place) resolve(_ context.Context, r Request) (Contribution, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions.before = append(p.decisions.before, r.Decision)
	decision := map[string]string{}
	c := Contribution{Edits: map[string]Edits{}}
	if r.Decision != nil {
		if err := json.Unmarshal(r.Decision, &decision); err != nil {
			return c, err
		}
	}
	for request, word := range decision {
		c.Edits[request] = Edits{Shared: container.Edits{Env: []string{"FOUND=" + word}}}
	}
	for request, add := range p.decisions.give {
		asked := request == nowhere || slices.ContainsFunc(r.Claim.Status.Allocation.Devices.Results, func(r apiResult) bool {
			return resourceclaim.BaseRequestRef(r.Request) == request
		})
		if !r.AfterReboot && asked {
			c.Edits[request], decision[request] = add.Edits, add.word
			c.Steps = append(c.Steps, add.steps...)
		}
	}
	var err error
	if len(decision) > 0 {
		c.Decision, err = json.Marshal(decision)
	}
	return c, errors.Join(p.decisions.err, err)
}

func (p *place) setPreset(request, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions.give = map[string]given{
		request: {Edits: Edits{Shared: container.Edits{Env: []string{"VALUE=" + value}}}, word: value},
	}
}

// commonSpecs are the files that any claim may share.
func (p *place) commonSpecs() (files []string) {
	p.t.Helper()
	all, err := filepath.Glob(filepath.Join(p.cdiDir(), strings.ReplaceAll(cdi.CommonKind, "/", "-")+"-*"))
	check.Must(p.t, err)
	return all
}

func presetOf(r *record.Record) string {
	for i := range r.Devices {
		if p := r.Devices[i].Added; p != nil {
			return strings.Join(p.Edits.Env, " ")
		}
	}
	return ""
}

// TestPresetDecidedOnce: what presets give is decided when a claim is prepared for the first time. Whatever becomes of them, the claim
// has it to its end, also by the next process, and nothing is left afterwards.
func TestPresetDecidedOnce(t *testing.T) {
	s := newSite(t)
	s.setPreset("gpu0", "first")
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	if got := presetOf(first); got != "VALUE=first" || first.Devices[0].Added == nil || first.Devices[1].Added != nil {
		t.Fatalf("presets gave %q, devices %+v", got, first.Devices)
	}
	s.setPreset("gpu0", "second")
	for _, again := range []func(){
		func() {}, func() { s = s.restart() }, func() { check.Must(t, os.RemoveAll(s.cdiDir())) }, func() { s.decisions.give = nil },
	} {
		again()
		s.tidy()
		if diff := cmp.Diff(first.Devices, s.prepare(c).Devices); diff != "" {
			t.Errorf("asked again (-first +then):\n%s", diff)
		}
	}
	if len(s.decisions.before) != 1 {
		t.Errorf("presets were resolved %d times, want once", len(s.decisions.before))
	}
	s.unprepare("u1")
	s.tidy()
	if s.Specs.Has(first.Devices[0].Added.CDIDevice) {
		t.Errorf("left over: %v", s.commonSpecs())
	}
}

// TestPresetOnceARequest: a request of several devices has it once, and claims that get the same share one file.
func TestPresetOnceARequest(t *testing.T) {
	s := newSite(t)
	s.setPreset("both", "same")
	two := []apiResult{aGPU("gpu0"), aGPU("gpu1")}
	for i := range two {
		two[i].Request = "both"
	}
	r := s.prepare(allocated("u1", two...))
	if r.Devices[0].Added == nil || r.Devices[1].Added != nil {
		t.Errorf("devices %+v, want the preset at the first", r.Devices)
	}
	disk := aDisk("ssd0")
	disk.Request = "both/alternative"
	other := s.prepare(allocated("u2", disk))
	if other.Devices[0].Added == nil || other.Devices[0].Added.CDIDevice != r.Devices[0].Added.CDIDevice {
		t.Errorf("the same for another claim is %+v, want %s", other.Devices[0].Added, r.Devices[0].Added.CDIDevice)
	}
	s.unprepare("u1")
	s.tidy()
	if !s.Specs.Has(other.Devices[0].Added.CDIDevice) {
		t.Error("the file went with the first of two claims")
	}
}

// TestPresetAfterReboot: the decision outlives the boot, and its files are looked up anew, since a driver may have been updated. A claim
// that had none gets none: its pod began without.
func TestPresetAfterReboot(t *testing.T) {
	s := newSite(t)
	s.setPreset("gpu0", "decided")
	with, without := allocated("u1", aGPU("gpu0")), allocated("u2", aGPU("gpu1"))
	s.prepare(with)
	s.prepare(without)
	s.setPreset("gpu1", "too late")
	s = s.reboot()
	s.put(with)
	s.put(without)
	if got := presetOf(s.prepare(with)); got != "FOUND=decided" {
		t.Errorf("after the reboot the claim has %q, want what the decision finds now", got)
	}
	if got := presetOf(s.prepare(without)); got != "" {
		t.Errorf("after the reboot a claim without presets has %q", got)
	}
}

// TestPresetFails: a claim whose presets cannot be had is not prepared, holds nothing, and is when they can.
func TestPresetFails(t *testing.T) {
	s := newSite(t)
	s.setPreset("gpu0", "value")
	s.decisions.err = errors.New("libcuda.so.1 is not on this node")
	c := allocated("u1", aGPU("gpu0"))
	if _, err := s.ask(c); !errors.Is(err, s.decisions.err) {
		t.Errorf("got %v, want why the preset cannot be had", err)
	}
	s.records()
	s.heldBy("", aGPU("gpu0"))
	s.decisions.err = nil
	s.setPreset(nowhere, "value")
	if _, err := s.ask(c); err == nil || !strings.Contains(err.Error(), nowhere) {
		t.Errorf("presets for a request that is not there: %v", err)
	}
	s.setPreset("gpu0", "odd\x00value")
	if _, err := s.ask(c); err == nil || !strings.Contains(err.Error(), "gpu0") {
		t.Errorf("presets that no CDI spec can hold: %v", err)
	}
	s.setPreset("gpu0", "value")
	s.prepare(c)
}

// TestPresetOwn: what presets give to one claim alone is in the claim's own spec, after what it needs was done, and goes with the claim.
func TestPresetOwn(t *testing.T) {
	l := &lab{}
	s := newSite(t).effectsOf(l)
	s.setPreset("gpu0", "value")
	given := s.decisions.give["gpu0"]
	given.Own = container.Edits{Mounts: []container.Mount{{HostPath: "/mounts/u1", ContainerPath: "/own"}}}
	given.steps = []step.Step{effect("mount"), effect("mount")} // two requests may have the same
	s.decisions.give["gpu0"] = given
	c := allocated("u1", aGPU("gpu0"))
	r := s.prepare(c)
	l.did(t, "apply mount")
	preset := r.Devices[0].Added
	if len(r.Steps) != 2 || r.Steps[1].Kind != cdi.StepKind || !isOwnDevice(preset.OwnDevice) || isOwnDevice(preset.CDIDevice) ||
		isOwnDevice(r.Devices[0].CDIDevice) {
		t.Fatalf("steps %v for device %+v with %+v", r.Steps, r.Devices[0], preset)
	}
	s = s.restart().effectsOf(l)
	check.Must(t, os.RemoveAll(s.cdiDir()))
	if diff := cmp.Diff(r.Devices, s.prepare(c).Devices); diff != "" {
		t.Errorf("asked again (-first +then):\n%s", diff)
	}
	l.did(t, "verify mount")
	if files, err := s.Specs.Files(); err != nil || len(files) != 4 {
		t.Errorf("specs %v, %v: want those of the device, of its name, of the preset and of the claim", files, err)
	}
	s.unprepare("u1")
	l.did(t, "undo mount")

	given.Shared = container.Edits{}
	s.decisions.give["gpu0"] = given
	r = s.prepare(c)
	if preset := r.Devices[0].Added; preset.CDIDevice != "" || !isOwnDevice(preset.OwnDevice) {
		t.Errorf("with nothing that others could have: %+v", preset)
	}
	l.did(t, "apply mount")
	s = s.reboot().effectsOf(l)
	s.put(c)
	s.prepare(c) // its decision finds other files, and no mount, then
	l.did(t, "undo mount")
}

// SPDX-License-Identifier: Apache-2.0

package engine

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
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

// nowhere is a request that no claim has.
const nowhere = "nowhere"

// resolved is what presets decide for requests, and what they were told of an earlier decision.
type resolved struct {
	give   map[string]Preset
	err    error
	before []map[string]json.RawMessage
}

// resolve decides anew, or looks an earlier decision's files up anew: those have the word as their variable's value.
func (p *place) resolve(
	_ context.Context, c *resourceapi.ResourceClaim, _ claim.Allocation, _ []*resourceapi.ResourceClaim,
	given map[string]json.RawMessage,
) (map[string]Preset, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions.before = append(p.decisions.before, given)
	out := map[string]Preset{}
	for request, decision := range given {
		out[request] = Preset{Given: decision, Edits: container.Edits{Env: []string{"FOUND=" + string(decision)}}}
	}
	for request, preset := range p.decisions.give {
		asked := request == nowhere || slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r apiResult) bool {
			return resourceclaim.BaseRequestRef(r.Request) == request
		})
		if given == nil && asked {
			out[request] = preset
		}
	}
	return out, p.decisions.err
}

func (p *place) setPreset(request, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions.give = map[string]Preset{
		request: {Edits: container.Edits{Env: []string{"VALUE=" + value}}, Given: json.RawMessage(`"` + value + `"`)},
	}
}

// commonSpecs are the files that any claim may share.
func (p *place) commonSpecs() (files []string) {
	p.t.Helper()
	all, err := filepath.Glob(filepath.Join(p.cdiDir(), strings.ReplaceAll(cdi.CommonKind, "/", "-")+"-*"))
	must(p.t, err)
	return all
}

func presetOf(r *record.Record) string {
	for i := range r.Devices {
		if p := r.Devices[i].Preset; p != nil {
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
	if got := presetOf(first); got != "VALUE=first" || first.Devices[0].Preset == nil || first.Devices[1].Preset != nil {
		t.Fatalf("presets gave %q, devices %+v", got, first.Devices)
	}
	s.setPreset("gpu0", "second")
	for _, again := range []func(){
		func() {}, func() { s = s.restart() }, func() { must(t, os.RemoveAll(s.cdiDir())) }, func() { s.decisions.give = nil },
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
	if s.Specs.Has(first.Devices[0].Preset.CDIDevice) {
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
	if r.Devices[0].Preset == nil || r.Devices[1].Preset != nil {
		t.Errorf("devices %+v, want the preset at the first", r.Devices)
	}
	disk := aDisk("ssd0")
	disk.Request = "both/alternative"
	other := s.prepare(allocated("u2", disk))
	if other.Devices[0].Preset == nil || other.Devices[0].Preset.CDIDevice != r.Devices[0].Preset.CDIDevice {
		t.Errorf("the same for another claim is %+v, want %s", other.Devices[0].Preset, r.Devices[0].Preset.CDIDevice)
	}
	s.unprepare("u1")
	s.tidy()
	if !s.Specs.Has(other.Devices[0].Preset.CDIDevice) {
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
	if got := presetOf(s.prepare(with)); got != `FOUND="decided"` {
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
	given.Steps = []step.Step{effect("mount"), effect("mount")} // two requests may have the same
	s.decisions.give["gpu0"] = given
	c := allocated("u1", aGPU("gpu0"))
	r := s.prepare(c)
	l.did(t, "apply mount")
	preset := r.Devices[0].Preset
	if len(r.Steps) != 2 || r.Steps[1].Kind != cdi.StepKind || !own(preset.OwnDevice) || own(preset.CDIDevice) || own(r.Devices[0].CDIDevice) {
		t.Fatalf("steps %v for device %+v with %+v", r.Steps, r.Devices[0], preset)
	}
	s = s.restart().effectsOf(l)
	must(t, os.RemoveAll(s.cdiDir()))
	if diff := cmp.Diff(r.Devices, s.prepare(c).Devices); diff != "" {
		t.Errorf("asked again (-first +then):\n%s", diff)
	}
	l.did(t, "verify mount")
	if files, err := s.Specs.Files(); err != nil || len(files) != 3 {
		t.Errorf("specs %v, %v: want that of the device, of the preset and of the claim", files, err)
	}
	s.unprepare("u1")
	l.did(t, "undo mount")

	given.Edits = container.Edits{}
	s.decisions.give["gpu0"] = given
	r = s.prepare(c)
	if preset := r.Devices[0].Preset; preset.CDIDevice != "" || !own(preset.OwnDevice) {
		t.Errorf("with nothing that others could have: %+v", preset)
	}
	l.did(t, "apply mount")
	s = s.reboot().effectsOf(l)
	s.put(c)
	s.prepare(c) // its decision finds other files, and no mount, then
	l.did(t, "undo mount")
}

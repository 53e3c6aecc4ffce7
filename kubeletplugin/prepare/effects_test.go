// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// chip is a region of a card.
func chip(name, card string) device.Device {
	return device.Device{
		Kind: device.KindFPGA, Name: name, Region: &fpga.Region{Backend: "memory", Card: card},
		Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/" + name, Major: 245, Permissions: "rw"}}},
	}
}

// aChip is a result whose request is named like the region.
func aChip(name string) apiResult { return result(name, device.KindFPGA, name) }

const effectKind = "test.effect"

// lab is what effects are had on: it writes down what is done to it, and can fail.
type lab struct {
	mu    sync.Mutex
	lines []string
	// asked is how often steps were asked for; want are those for a region, "load" where it is not named.
	asked int
	want  map[string][]string
	// refuse is what asking ends with, failing what a step ends with, by its line.
	refuse  error
	failing map[string]error
	// quarantined and cleared are the claims that the engine told of.
	quarantined, cleared []string
}

// effectsOf has an engine ask a lab.
func (s *site) effectsOf(l *lab) *site {
	note := func(verb string) func(context.Context, json.RawMessage) error {
		return func(_ context.Context, raw json.RawMessage) error {
			var what string
			if err := json.Unmarshal(raw, &what); err != nil {
				return err
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lines = append(l.lines, verb+" "+what)
			return l.failing[verb+" "+what]
		}
	}
	kind := step.Kind{Apply: note("apply"), Undo: note("undo"), Verify: note("verify")}
	s.kinds[effectKind], s.effects.kinds[effectKind] = kind, kind
	s.effects.plan = func(_ context.Context, r Request) (out Contribution, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked++
		for i := range r.Allocation.Results {
			if dev, ok := r.Find(&r.Allocation.Results[i]); ok && dev.Region != nil {
				for _, what := range l.of(dev.Name) {
					out.Steps = append(out.Steps, effect(what+" "+dev.Name+" for "+string(r.Claim.UID)))
				}
			}
		}
		return out, l.refuse
	}
	s.effects.leftovers = func(_ context.Context, uid string, dev device.Device) ([]step.Step, error) {
		if dev.Region == nil {
			return nil, nil
		}
		return []step.Step{effect("whatever " + dev.Name + " had of " + uid)}, l.refuse
	}
	s.health.quarantine = func(r *record.Record, _ error) { l.quarantined = append(l.quarantined, r.UID) }
	s.health.clear = func(r *record.Record) { l.cleared = append(l.cleared, r.UID) }
	return s
}

func (l *lab) of(name string) []string {
	if what, ok := l.want[name]; ok {
		return what
	}
	return []string{"load"}
}

func effect(what string) step.Step {
	raw, err := json.Marshal(what)
	if err != nil {
		panic(err) // a string always encodes
	}
	return step.Step{Kind: effectKind, Target: what, Params: raw}
}

// did wants these lines since the last call.
func (l *lab) did(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.lines); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	l.lines = nil
}

// chips is a node with two regions of one card, one of another, and a disk.
func chips(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	p.setMachine(machine{chip("r0", "card-a"), chip("r1", "card-a"), chip("r2", "card-b"), ssd("ssd0"), gpu("gpu0", 0)})
	return p
}

// TestEffects: what the devices need is done in its order after directories are lent and before the claim's own specs are written, asked
// for once in a boot, verified at each hit, and undone in reverse.
func TestEffects(t *testing.T) {
	l := &lab{want: map[string][]string{"r0": {"wipe", "load"}}}
	s := chips(t).newEngine().effectsOf(l)
	c := ofClaim(allocated("u1", aChip("r0"), aChip("r2"), aDisk("ssd0")), atScratch, "ssd0")
	r := s.prepare(c)
	l.did(t, "apply wipe r0 for u1", "apply load r0 for u1", "apply load r2 for u1")
	var kinds []string
	for i := range r.Steps {
		kinds = append(kinds, r.Steps[i].Kind)
	}
	if diff := cmp.Diff([]string{"host.scratch", effectKind, effectKind, effectKind, "cdi.write"}, kinds); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	l.want["r0"] = []string{"another"} // which is the next claim's affair
	s.prepare(c)
	s = s.restart().effectsOf(l)
	s.prepare(c)
	verified := []string{"verify wipe r0 for u1", "verify load r0 for u1", "verify load r2 for u1"}
	l.did(t, append(verified, verified...)...)
	if l.asked != 1 {
		t.Errorf("asked %d times in a boot", l.asked)
	}
	s.unprepare("u1")
	l.did(t, "undo load r2 for u1", "undo load r0 for u1", "undo wipe r0 for u1")
	s.records()
	s.prepare(allocated("u2", aGPU("gpu0")))
	s.prepare(allocated("u3", aChip("r1")))
	l.did(t, "apply load r1 for u3")
}

// TestEffectsAfterReboot: they are asked for again, applied again, and what is no longer among them is undone.
func TestEffectsAfterReboot(t *testing.T) {
	l := &lab{want: map[string][]string{"r0": {"wipe", "load"}}}
	s := chips(t).newEngine().effectsOf(l)
	c := allocated("u1", aChip("r0"))
	s.prepare(c)
	s = s.reboot().effectsOf(l)
	l.did(t, "apply wipe r0 for u1", "apply load r0 for u1")
	s.tidy()
	l.did(t) // nothing before kubelet asks
	l.want["r0"] = []string{"load", "more"}
	l.refuse = errInjected
	if _, err := s.ask(c); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	l.did(t)
	s.heldBy("u1", aChip("r0")) // its pod may come back
	l.refuse = nil
	s.prepare(c)
	l.did(t, "undo wipe r0 for u1", "apply load r0 for u1", "apply more r0 for u1")
	s.unprepare("u1")
	l.did(t, "undo more r0 for u1", "undo load r0 for u1")
}

// TestEffectsRefused: a claim that is refused has nothing.
func TestEffectsRefused(t *testing.T) {
	l := &lab{refuse: &claim.RefusedError{Reason: claim.ReasonForbiddenByPolicy}}
	s := chips(t).newEngine().effectsOf(l)
	_, err := s.ask(allocated("u1", aChip("r0"), aDisk("ssd0")))
	if refused, ok := errors.AsType[*claim.RefusedError](err); !ok || refused.Reason != claim.ReasonForbiddenByPolicy {
		t.Errorf("error %v", err)
	}
	l.did(t)
	s.records()
	s.heldBy("", aChip("r0"), aDisk("ssd0"))
}

// TestEffectFails: what was done is undone in reverse, that which failed first, since nobody knows how far it came.
func TestEffectFails(t *testing.T) {
	l := &lab{want: map[string][]string{"r0": {"wipe", "load", "check"}}, failing: map[string]error{"apply load r0 for u1": errInjected}}
	s := chips(t).newEngine().effectsOf(l)
	if _, err := s.ask(allocated("u1", aChip("r0"))); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	// Undoing a step that was never applied does nothing, which is the kind's to know.
	l.did(t, "apply wipe r0 for u1", "apply load r0 for u1", "undo check r0 for u1", "undo load r0 for u1", "undo wipe r0 for u1")
	s.records()
	s.heldBy("", aChip("r0"))
	if len(l.quarantined) > 0 || !slices.Equal(l.cleared, []string{"u1"}) {
		t.Errorf("quarantined %v, cleared %v", l.quarantined, l.cleared)
	}
}

// TestEffectStays: a step that cannot be undone keeps the region from everybody else until it is.
func TestEffectStays(t *testing.T) {
	l := &lab{want: map[string][]string{"r0": {"wipe", "load"}}, failing: map[string]error{}}
	s := chips(t).newEngine().effectsOf(l)
	s.prepare(allocated("u1", aChip("r0")))
	l.failing["undo wipe r0 for u1"] = errInjected
	l.did(t, "apply wipe r0 for u1", "apply load r0 for u1")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	l.did(t, "undo load r0 for u1", "undo wipe r0 for u1")
	if !slices.Equal(l.quarantined, []string{"u1"}) || len(l.cleared) > 0 {
		t.Errorf("quarantined %v, cleared %v", l.quarantined, l.cleared)
	}
	s = s.restart().effectsOf(l)
	if _, err := s.ask(allocated("u2", aChip("r0"))); !isInUse(err) {
		t.Errorf("error %v, want that it is held", err)
	}
	s.tidy()
	s.reported("RecoveryFailed u1")
	if diff := cmp.Diff(map[[2]string]string{{testNode + "/fpga", "r0"}: "u1"}, s.Recovering()); diff != "" {
		t.Errorf("recovering (-want +got):\n%s", diff)
	}
	l.failing = nil
	s.tidy()
	s.reported("RolledBack u1")
	s.records()
	l.did(t, "undo wipe r0 for u1", "undo wipe r0 for u1") // from where it stopped
	s.prepare(allocated("u2", aChip("r0")))
}

// TestRemains: a claim whose record is lost has all that it may have had undone, and keeps its devices until that is known and done.
func TestRemains(t *testing.T) {
	l := &lab{}
	s := chips(t).newEngine().effectsOf(l)
	s.prepare(allocated("u1", aChip("r0"), aChip("r2"), aGPU("gpu0")))
	l.did(t, "apply load r0 for u1", "apply load r2 for u1")
	check.Must(t, os.WriteFile(s.statePath("claims", "u1.json"), []byte("{"), 0o600))
	l.refuse = errInjected
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	l.did(t)
	s.heldBy("u1", aChip("r0"), aChip("r2"), aGPU("gpu0"))
	l.refuse = nil
	s.unprepare("u1")
	l.did(t, "undo whatever r2 had of u1", "undo whatever r0 had of u1")
	s.records()
	s.heldBy("", aChip("r0"), aChip("r2"), aGPU("gpu0"))
	s.reported("RecordDamaged u1")
}

// TestOrphans: a region that nobody holds and that nobody knows is put right as of a claim that is given back. Until then nobody gets it.
func TestOrphans(t *testing.T) {
	l := &lab{failing: map[string]error{"undo whatever r0 had of u1": errInjected}}
	s := chips(t).newEngine().effectsOf(l)
	orphan := Orphan{UID: "u1", Device: chip("r0", "card-a")}
	s.effects.orphans = func() []Orphan { return []Orphan{orphan} }
	l.refuse = errInjected // what is to be done cannot be known yet
	s.tidy()
	s.reported("RecoveryFailed u1")
	s.records()
	l.refuse = nil
	s.tidy()
	s.reported("RecoveryFailed u1")
	s.records("u1")
	s.inPhase("u1", record.Releasing)
	s.heldBy("u1", aChip("r0"))
	if _, err := s.ask(allocated("u2", aChip("r0"))); !isInUse(err) {
		t.Errorf("error %v, want that it is held", err)
	}
	s = s.restart().effectsOf(l) // the next process finds a claim that is half given back
	s.tidy()
	s.reported("RecoveryFailed u1")
	l.did(t, "undo whatever r0 had of u1", "undo whatever r0 had of u1")
	l.failing = nil
	s.tidy()
	s.reported("RolledBack u1")
	s.records()
	s.heldBy("", aChip("r0"))
	l.did(t, "undo whatever r0 had of u1")
}

// TestOrphanIsLeftAlone where somebody has the region, or the claim that it is named after has a record: what that says counts.
func TestOrphanIsLeftAlone(t *testing.T) {
	l := &lab{}
	s := chips(t).newEngine().effectsOf(l)
	s.prepare(allocated("u1", aChip("r0")))
	l.did(t, "apply load r0 for u1")
	s.effects.orphans = func() []Orphan {
		return []Orphan{{UID: "u0", Device: chip("r0", "card-a")}, {UID: "u1", Device: chip("r2", "card-b")}}
	}
	s.tidy()
	s.reported()
	s.records("u1")
	s.inPhase("u1", record.Prepared)
	s.heldBy("", aChip("r2"))
	l.lines = nil
	hold, err := s.Store.LockClaim(t.Context(), "u3")
	check.Must(t, err)
	s.effects.orphans = func() []Orphan { return []Orphan{{UID: "u3", Device: chip("r2", "card-b")}} }
	s.tidy()
	s.records("u1") // somebody works on that claim
	l.did(t, "verify load r0 for u1")
	hold.Release()
	hold, err = s.Store.LockClaim(t.Context(), "u4")
	check.Must(t, err, hold.Devices(t.Context(), heldNames([]record.Device{{Pool: aChip("r2").Pool, Name: "r2"}})))
	s.tidy()
	s.records("u1") // a Prepare is about to take the device
	l.did(t, "verify load r0 for u1")
	hold.Release()
	s.tidy()
	s.records("u1")
	slices.Sort(l.lines) // what is looked after and what is undone goes on side by side
	l.did(t, "undo whatever r2 had of u3", "verify load r0 for u1")
	s.reported("RolledBack u3")
}

// ruled is a claim whose class has a rule of co-tenancy for its chips.
func ruled(c *resourceapi.ResourceClaim, rule v1alpha1.CoTenancy) *resourceapi.ResourceClaim {
	return ofClass(c, `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","policy":{"coTenancy":"`+string(rule)+`"}}`)
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// sameRecord compares what records say, not how much of a file was read for them.
func sameRecord() cmp.Option { return cmpopts.IgnoreUnexported(record.Record{}) }

func TestPrepareTwice(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	data := s.write("ssd0")
	second := s.prepare(c)
	if diff := cmp.Diff(first, second, sameRecord()); diff != "" {
		t.Errorf("the second answer (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(second, s.load("u1"), sameRecord()); diff != "" {
		t.Errorf("stored (-answered +stored):\n%s", diff)
	}
	if !there(data) {
		t.Error("the second call took the claim's data")
	}
	want := []string{"gpu0", "ssd0"}
	if got := []string{first.Devices[0].Name, first.Devices[1].Name}; !cmp.Equal(want, got) {
		t.Errorf("devices %v, want %v", got, want)
	}
	if first.Namespace != "team-a" || first.Name != "claim-u1" || first.BootID != s.clock.BootID() {
		t.Errorf("record %+v", first)
	}
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.reported()
}

// TestPlainClaimWritesNoSpec: a device's own edits are one file for all its claims, there before any of them, and its name is another.
func TestPlainClaimWritesNoSpec(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	before, err := os.ReadDir(s.cdiDir())
	check.Must(t, err)
	s.unprepare("u1")
	s.prepare(allocated("u2", aGPU("gpu0")))
	after, err := os.ReadDir(s.cdiDir())
	check.Must(t, err)
	name := func(e os.DirEntry) string { return e.Name() }
	if len(before) != 2 || !slices.EqualFunc(before, after, func(a, b os.DirEntry) bool { return name(a) == name(b) }) {
		t.Errorf("files %v, then %v", before, after)
	}
}

// TestAnswerFollowsTheDevice: a device that changed its numbers, as by a reset or a driver's reload, makes kubelet's next call be
// answered with the new ones. What the claim wrote stays.
func TestAnswerFollowsTheDevice(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	data := s.write("ssd0")
	s.setMachine(machine{gpu("gpu0", 7), ssd("ssd0")})
	check.Must(t, os.RemoveAll(s.statePath("owners")))
	second := s.prepare(c)
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	if second.Devices[0].Edits.Nodes[0].Minor != 7 || second.Devices[0].CDIDevice == first.Devices[0].CDIDevice {
		t.Errorf("device %+v: the number of before", second.Devices[0])
	}
	if diff := cmp.Diff(first.Devices[1], second.Devices[1]); diff != "" {
		t.Errorf("the device that did not change (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(second, s.load("u1"), sameRecord()); diff != "" {
		t.Errorf("stored (-answered +stored):\n%s", diff)
	}
	if !there(data) {
		t.Error("the claim lost its data")
	}
	s.unprepare("u1")
	if there(data) {
		t.Error("the directory was not emptied in the end")
	}
}

// TestDeviceLeaves: a spec must not name a node that is not there, so kubelet gets an error while the device is gone, the claim keeps
// what it holds, and goes on when the device is back.
func TestDeviceLeaves(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	data := s.write("ssd0")
	s.setMachine(machine{ssd("ssd0")})
	if _, err := s.ask(c); !errors.Is(err, ErrDeviceGone) || !strings.Contains(err.Error(), "node-1/gpu/gpu0") {
		t.Errorf("error %v, want one that names the device", err)
	}
	s.inPhase("u1", record.Prepared)
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	if !there(data) {
		t.Error("the claim's data was given back")
	}
	s.setMachine(machine{gpu("gpu0", 0), ssd("ssd0")})
	if diff := cmp.Diff(first, s.prepare(c), sameRecord()); diff != "" {
		t.Errorf("the device is back (-before +after):\n%s", diff)
	}
}

// TestDeviceLeavesForGood: what left the view can still be given back.
func TestDeviceLeavesForGood(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	s.setMachine(machine{})
	check.Must(t, os.RemoveAll(s.disk("ssd0")))
	s.unprepare("u1")
	s.records()
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
}

func TestAnotherAllocation(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	data := s.write("ssd0")
	r := s.prepare(allocated("u1", aGPU("gpu1")))
	if len(r.Devices) != 1 || r.Devices[0].Name != "gpu1" || len(r.Steps) != 0 {
		t.Errorf("record %+v", r)
	}
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	s.heldBy("u1", aGPU("gpu1"))
	if there(data) {
		t.Error("the former directory was not emptied")
	}
}

// TestReboot: after a reboot the numbers of device nodes are read anew, and a directory keeps its claim's content.
func TestReboot(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	before := s.prepare(c)
	data := s.write("ssd0")
	check.Must(t, os.Chmod(s.disk("ssd0"), 0o700))
	s.setMachine(machine{gpu("gpu0", 9), ssd("ssd0")})
	s = s.reboot()
	after := s.prepare(c)
	if after.BootID != s.clock.BootID() || after.Devices[0].Edits.Nodes[0].Minor != 9 {
		t.Errorf("record %+v still has the numbers of the former boot", after)
	}
	if diff := cmp.Diff(before.Steps, after.Steps); diff != "" {
		t.Errorf("steps (-before +after):\n%s", diff)
	}
	if !there(data) {
		t.Error("the reboot took the claim's data")
	}
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v (%v): the step was not applied again", info.Mode(), err)
	}
	if diff := cmp.Diff(after, s.load("u1"), sameRecord()); diff != "" {
		t.Errorf("stored (-answered +stored):\n%s", diff)
	}
}

// TestRebootFails: a failure after a reboot undoes nothing, since the data is still the claim's, and the next call tries again.
func TestRebootFails(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	s = s.reboot()
	repair := s.failing("apply", "ssd0")
	for range 3 {
		if _, err := s.ask(c); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the step's", err)
		}
		s.inPhase("u1", record.Renewing)
	}
	s.tidy()
	s.heldBy("u1", aDisk("ssd0"))
	if !there(data) {
		t.Error("the failure took the claim's data")
	}
	repair()
	if r := s.prepare(c); r.BootID != s.clock.BootID() {
		t.Errorf("boot %s", r.BootID)
	}
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v (%v): the step was not applied", info.Mode(), err)
	}
	s.unprepare("u1")
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o755 || there(data) {
		t.Errorf("mode %v (%v), data there: %v, after everything", info.Mode(), err, there(data))
	}
}

func TestDeviceGone(t *testing.T) {
	s := newSite(t)
	_, err := s.ask(allocated("u1", aGPU("gpu7")))
	check.WantErr(t, err, ErrDeviceGone, "node-1/gpu/gpu7")
	s.records()
}

// TestInUseElsewhere: what another namespace reads does not name the holder, which the log does.
func TestInUseElsewhere(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	_, err := s.ask(inTeam("team-b", allocated("u2", aGPU("gpu0"))))
	if _, ok := errors.AsType[*record.InUseError](err); !ok || !strings.Contains(err.Error(), "by another claim") {
		t.Fatalf("error %v, want an InUseError", err)
	}
	for _, secret := range []string{"team-a", "claim-u1", "u1"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("team-b reads %q in %q", secret, err)
		}
	}
	if got := Holder(err); got != "claim team-a/claim-u1 (UID u1)" {
		t.Errorf("the log reads %q", got)
	}
	chip := &conflict.TenantError{Device: "r1", Sibling: "r0", Claim: "team-a/work", Namespace: "team-b", Rule: v1alpha1.CoTenancyExclusive}
	if strings.Contains(chip.Error(), "team-a") || Holder(chip) != "claim team-a/work" {
		t.Errorf("team-b reads %q, the log %q", chip, Holder(chip))
	}
}

func TestInUse(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	_, err := s.ask(allocated("u2", aGPU("gpu1"), aGPU("gpu0"), aDisk("ssd0")))
	inUse, ok := errors.AsType[*record.InUseError](err)
	if !ok || inUse.Owner.UID != "u1" || inUse.Differs {
		t.Fatalf("error %v, want an InUseError of u1", err)
	}
	for _, want := range []string{"node-1/gpu/gpu0", "team-a/claim-u1", "u1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	s.records("u1")
	s.heldBy("", aGPU("gpu1"), aDisk("ssd0"))
	s.unprepare("u1")
	s.prepare(allocated("u2", aGPU("gpu0")))
}

// TestShares: claims may share a device that the scheduler gave them shares of, if they agree on what is done to it, wherever each
// has its configuration from.
func TestShares(t *testing.T) {
	s := newSite(t)
	s.prepare(ofClaim(ofClass(allocated("u1", share(aDisk("ssd0"), "s1")), keepContent), atData, "ssd0"))
	s.prepare(ofClass(allocated("u2", share(aDisk("ssd0"), "s2")), keepContentAt("/data")))
	s.heldBy("u1 u2", aDisk("ssd0"))
	tests := map[string]struct {
		claim   *resourceapi.ResourceClaim
		differs bool
	}{
		"another configuration": {ofClass(allocated("u3", share(aDisk("ssd0"), "s3")), keepContentAt("/scratch")), true},
		"no path of its own":    {ofClass(allocated("u3", share(aDisk("ssd0"), "s3")), keepContent), true},
		"the whole device":      {ofClass(allocated("u3", aDisk("ssd0")), keepContentAt("/data")), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := s.ask(tt.claim)
			inUse, ok := errors.AsType[*record.InUseError](err)
			if !ok || inUse.Differs != tt.differs || inUse.Owner.UID != "u1" {
				t.Errorf("error %v, want an InUseError of u1, another configuration: %v", err, tt.differs)
			}
			s.records("u1", "u2")
		})
	}
	s.unprepare("u1")
	s.heldBy("u2", aDisk("ssd0"))
	s.unprepare("u2")
	s.prepare(ofClass(allocated("u3", share(aDisk("ssd0"), "s3")), keepContentAt("/scratch")))
	if r := s.load("u3"); r.Devices[0].ShareID != "s3" {
		t.Errorf("share %q", r.Devices[0].ShareID)
	}
}

func keepContentAt(path string) string {
	return `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"` + path + `","policy":{"onRelease":"Keep"}}`
}

// TestSettled: what a feature completes of a share's configuration is what counts beside other claims, and stays so within a boot.
func TestSettled(t *testing.T) {
	s := newSite(t)
	settled := v1alpha1.SharingTimeSlicing
	settle := func(r *claim.Result) {
		if r.Config.GPU != nil {
			r.Config.GPU = &claim.GPUEffective{Strategy: settled}
		}
	}
	s.effects.settle = settle
	first := s.prepare(allocated("u1", share(aGPU("gpu0"), "s1")))
	if got := first.Devices[0].Setting; got != "strategy TimeSlicing" {
		t.Errorf("the share has %q", got)
	}
	s.prepare(ofClaim(allocated("u2", share(aGPU("gpu0"), "s2")), timeSlices))
	settled = v1alpha1.SharingExclusive
	s = s.restart()
	s.effects.settle = settle
	s.setMachine(machine{gpu("gpu0", 7), gpu("gpu1", 1)}) // the records of its claims are made again
	again := s.prepare(allocated("u1", share(aGPU("gpu0"), "s1")))
	if again.Devices[0].Setting != first.Devices[0].Setting || again.Devices[0].Effect != first.Devices[0].Effect {
		t.Errorf("the share has %q after a change of the policy, and had %q", again.Devices[0].Setting, first.Devices[0].Setting)
	}
	_, err := s.ask(allocated("u3", share(aGPU("gpu0"), "s3")))
	if inUse, ok := errors.AsType[*record.InUseError](err); !ok || !inUse.Differs {
		t.Errorf("error %v, want an InUseError, another configuration", err)
	}
}

const timeSlices = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"TimeSlicing"}}`

// TestWholeIsNotShared: a device that one claim has for itself is not to be had as a share.
func TestWholeIsNotShared(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	_, err := s.ask(allocated("u2", share(aGPU("gpu0"), "s2")))
	if inUse, ok := errors.AsType[*record.InUseError](err); !ok || inUse.Differs {
		t.Errorf("error %v, want an InUseError", err)
	}
}

// TestAnotherShare: an allocation that has another share of the same device is another allocation.
func TestAnotherShare(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", share(aGPU("gpu0"), "s1")))
	if r := s.prepare(allocated("u1", share(aGPU("gpu0"), "s2"))); r.Devices[0].ShareID != "s2" {
		t.Errorf("share %q", r.Devices[0].ShareID)
	}
}

// TestHolds: an answer is for the very allocation, request by request.
func TestHolds(t *testing.T) {
	s := newSite(t)
	r := s.prepare(allocated("u1", share(result("a", device.KindGPU, "gpu0"), "s1"), result("b", device.KindHost, "ssd0")))
	gpu, disk := share(result("a", device.KindGPU, "gpu0"), "s1"), result("b", device.KindHost, "ssd0")
	renamed := gpu
	renamed.Request = "c"
	tests := map[string]struct {
		results []apiResult
		want    bool
	}{
		"the same":          {[]apiResult{gpu, disk}, true},
		"another order":     {[]apiResult{disk, gpu}, false},
		"another request":   {[]apiResult{renamed, disk}, false},
		"another device":    {[]apiResult{share(result("a", device.KindGPU, "gpu1"), "s1"), disk}, false},
		"another kind":      {[]apiResult{share(result("a", device.KindFPGA, "gpu0"), "s1"), disk}, false},
		"another share":     {[]apiResult{share(gpu, "s2"), disk}, false},
		"the whole device":  {[]apiResult{result("a", device.KindGPU, "gpu0"), disk}, false},
		"a look":            {[]apiResult{gpu, asAdmin(disk)}, false},
		"one less":          {[]apiResult{gpu}, false},
		"one more":          {[]apiResult{gpu, disk, aGPU("gpu1")}, false},
		"none":              {nil, false},
		"other drivers too": {[]apiResult{gpu, disk, {Driver: "gpu.example.com", Pool: "p", Device: "d"}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, err := claim.Resolve(claim.Input{Claim: allocated("u1", tt.results...), Driver: v1alpha1.DriverName, Node: testNode})
			check.Must(t, err)
			if got := matchesAllocation(r, a); got != tt.want {
				t.Errorf("holds: %v, want %v", got, tt.want)
			}
		})
	}
	if matchesAllocation(nil, claim.Allocation{}) {
		t.Error("no record holds nothing")
	}
}

func TestSpecsWiped(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	first := s.prepare(c)
	check.Must(t, os.RemoveAll(s.cdiDir()))
	if diff := cmp.Diff(first, s.prepare(c), sameRecord()); diff != "" {
		t.Errorf("answer (-first +second):\n%s", diff)
	}
}

// TestSpecOfAnotherRelease: the spec that another release wrote for the same edits is good while it is there. When it is gone, it is
// written again under the name that kubelet has.
func TestSpecOfAnotherRelease(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"))
	s.prepare(c)
	const theirs = "fettle.dev/common=xother"
	r := s.load("u1")
	r.Devices[0].CDIDevice = theirs
	check.Must(t, s.Store.Create(r))
	file := filepath.Join(s.cdiDir(), "fettle.dev-common-xother.json")
	check.Must(t, os.WriteFile(file, []byte("{}"), 0o600))
	if r := s.prepare(c); r.Devices[0].CDIDevice != theirs {
		t.Errorf("answered %s, want what the claim was promised", r.Devices[0].CDIDevice)
	}
	check.Must(t, os.Remove(file))
	if r := s.prepare(c); r.Devices[0].CDIDevice != theirs {
		t.Errorf("answered %s, want what the claim was promised", r.Devices[0].CDIDevice)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), `"name":"xother"`) {
		t.Errorf("the file is %s, %v", data, err)
	}
}

// TestLostSecret: claims keep the names that kubelet has for them, their files and their effects, when new claims get names by another
// secret. So it is with the names that the version before made without a secret.
func TestLostSecret(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	s.setPreset("r0", "a")
	first := s.prepare(c)
	data, own := s.write("ssd0"), s.ownSpec("u1")
	s.names = cdi.NewNames([cdi.SecretSize]byte{2})
	s = s.restart()
	s.tidy()
	s.reported()
	if diff := cmp.Diff(first, s.prepare(c), sameRecord()); diff != "" {
		t.Errorf("answer (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(own, s.ownSpec("u1")); diff != "" {
		t.Errorf("the claim's own file (-before +after):\n%s", diff)
	}
	if !there(data) {
		t.Error("the claim's data is gone")
	}
	check.Must(t, os.RemoveAll(s.cdiDir()))
	s.tidy()
	s.isWhole(first)
	s.reported("SpecRestored u1")
	s.unprepare("u1")
	s.tidy()
	for _, file := range s.entries(s.cdiDir()) {
		if file == cdi.FileOf(first.Devices[0].CDIDevice) {
			t.Errorf("%s outlived its last claim", file)
		}
	}
	next := s.prepare(ofClaim(allocated("u2", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
	for i := range next.Devices {
		if next.Devices[i].CDIDevice == first.Devices[i].CDIDevice {
			t.Errorf("the next claim got the old name %s", next.Devices[i].CDIDevice)
		}
	}
}

// TestRebootRenames: kubelet asks for every claim after a reboot, so names of the version before end there.
func TestRebootRenames(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	first := s.prepare(c)
	s.names = cdi.NewNames([cdi.SecretSize]byte{2})
	s = s.reboot()
	second := s.prepare(c)
	s.isWhole(second)
	for i := range second.Devices {
		if second.Devices[i].CDIDevice == first.Devices[i].CDIDevice {
			t.Errorf("%s is still in use", first.Devices[i].CDIDevice)
		}
	}
}

// TestFailureRollsBack fails in each part of a Prepare, and wants nothing to be left of it.
func TestFailureRollsBack(t *testing.T) {
	tests := map[string]func(s *site){
		"first step":  func(s *site) { s.failing("apply", "ssd0") },
		"second step": func(s *site) { s.failing("apply", "ssd1") },
		"spec": func(s *site) {
			check.Must(s.t, os.RemoveAll(s.cdiDir()))
			check.Must(s.t, os.WriteFile(s.cdiDir(), nil, 0o600))
		},
		"a directory is gone": func(s *site) { check.Must(s.t, os.Remove(s.disk("ssd1"))) },
	}
	for name, sabotage := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			sabotage(s)
			if r, err := s.ask(allocated("u1", aGPU("gpu0"), aDisk("ssd0"), aDisk("ssd1"))); err == nil {
				t.Fatalf("prepared %+v", r)
			}
			s.records()
			s.heldBy("", aGPU("gpu0"), aDisk("ssd0"), aDisk("ssd1"))
			if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("mode %v (%v) was not restored", info.Mode(), err)
			}
		})
	}
}

// TestUndoFails: a record stays until its effects are undone, and while it does its devices are nobody else's.
func TestUndoFails(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	repair := s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	s.inPhase("u1", record.Releasing)
	s.heldBy("u1", aDisk("ssd0"))
	if _, err := s.ask(allocated("u2", aDisk("ssd0"))); !isInUse(err) {
		t.Errorf("the next claim: error %v, want that the device is in use", err)
	}
	if _, err := s.ask(c); !errors.Is(err, errInjected) {
		t.Errorf("the claim itself: error %v, want that it is not given back yet", err)
	}
	repair()
	s.unprepare("u1")
	s.records()
	s.prepare(allocated("u2", aDisk("ssd0")))
}

func isInUse(err error) bool {
	_, ok := errors.AsType[*record.InUseError](err)
	return ok
}

// TestPreparedAgainAfterFailedRelease: a release that was begun is finished before the claim is prepared anew, so that the next pod
// finds nothing of the last one's.
func TestPreparedAgainAfterFailedRelease(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	repair := s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err == nil {
		t.Fatal("given back")
	}
	repair()
	s.prepare(c)
	if there(data) {
		t.Error("the next pod finds the last one's data")
	}
}

func TestAdminAccessHoldsNothing(t *testing.T) {
	s := newSite(t)
	data := s.write("ssd0")
	d := s.diary()
	r := s.prepare(allocated("u1", asAdmin(aGPU("gpu0")), asAdmin(aDisk("ssd0"))))
	if node := r.Devices[0].Edits.Nodes[0]; node.Permissions != "r" {
		t.Errorf("node %+v, want it read-only", node)
	}
	if mount := r.Devices[1].Edits.Mounts[0]; !mount.ReadOnly {
		t.Errorf("mount %+v, want it read-only", mount)
	}
	for _, qualified := range []string{r.Devices[0].CDIDevice, r.Devices[1].CDIDevice} {
		if !isOwnDevice(qualified) {
			t.Errorf("%s is other claims' too", qualified)
		}
	}
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	s.prepare(allocated("u2", aGPU("gpu0")))
	s.prepare(allocated("u3", asAdmin(aGPU("gpu0"))))
	s.unprepare("u1")
	if !there(data) {
		t.Error("the end of a look took data")
	}
	if there(s.ownSpecPath("u1")) || !there(s.ownSpecPath("u3")) {
		t.Error("the specs of looks: the first must be gone and the second be there")
	}
	s.heldBy("u2", aGPU("gpu0"))
	if lines := d.take(); len(lines) > 0 {
		t.Errorf("a look did %v", lines)
	}
}

// TestOwnSpec: edits that are not a device's own are in the claim's own file, which lives as long as the claim.
func TestOwnSpec(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	r := s.prepare(c)
	if isOwnDevice(r.Devices[0].CDIDevice) || !isOwnDevice(r.Devices[1].CDIDevice) {
		t.Errorf("CDI devices %s and %s: only the second is the claim's own", r.Devices[0].CDIDevice, r.Devices[1].CDIDevice)
	}
	devices := s.ownSpec("u1").Devices
	if len(devices) != 1 || len(devices[0].ContainerEdits.Mounts) != 1 {
		t.Fatalf("devices %+v", devices)
	}
	mount := devices[0].ContainerEdits.Mounts[0]
	if mount.HostPath != "/mnt/disks/ssd0" || mount.ContainerPath != "/scratch" {
		t.Errorf("mount %+v", mount)
	}
	s.unprepare("u1")
	if there(s.ownSpecPath("u1")) {
		t.Error("the claim's own file outlived it")
	}
	again := s.prepare(ofClaim(allocated("u2", aDisk("ssd0")), atScratch))
	if again.Devices[0].CDIDevice == r.Devices[1].CDIDevice {
		t.Error("a CDI device name was used for two claims: runtimes cache what a name means")
	}
}

// TestOwnSpecChanges: other edits have another name, also in the same claim, and the file of before is gone.
func TestOwnSpecChanges(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", asAdmin(aGPU("gpu0")))
	first := s.prepare(c)
	s.setMachine(machine{gpu("gpu0", 5)})
	second := s.prepare(c)
	if first.Devices[0].CDIDevice == second.Devices[0].CDIDevice {
		t.Errorf("the name %s has two meanings", first.Devices[0].CDIDevice)
	}
	if devices := s.ownSpec("u1").Devices; len(devices) != 1 || devices[0].ContainerEdits.DeviceNodes[0].Minor != 5 {
		t.Errorf("devices %+v", devices)
	}
}

// TestOwnSpecGoes: a claim that no longer needs a file of its own has none.
func TestOwnSpecGoes(t *testing.T) {
	s := newSite(t)
	s.prepare(ofClaim(allocated("u1", aDisk("ssd0")), atScratch))
	data := s.write("ssd0")
	r := s.prepare(allocated("u1", aDisk("ssd0")))
	if isOwnDevice(r.Devices[0].CDIDevice) || there(s.ownSpecPath("u1")) {
		t.Errorf("CDI device %s, own file there: %v", r.Devices[0].CDIDevice, there(s.ownSpecPath("u1")))
	}
	if !there(data) {
		t.Error("the claim lost its data")
	}
}

func TestUnprepare(t *testing.T) {
	s := newSite(t)
	s.unprepare("never-seen")
	for _, uid := range []string{"../../etc", "", "a/b"} {
		if _, err := s.Unprepare(t.Context(), uid, s.now()); err == nil {
			t.Errorf("%q was taken for a UID", uid)
		}
	}
	s.prepare(allocated("u1", aGPU("gpu0")))
	r, err := s.Unprepare(t.Context(), "u1", s.now())
	if err != nil || r == nil || r.Devices[0].Name != "gpu0" {
		t.Errorf("unprepared %+v, %v: want what it held", r, err)
	}
	if r, err := s.Unprepare(t.Context(), "u1", s.now()); err != nil || r != nil {
		t.Errorf("the second time %+v, %v", r, err)
	}
	s.records()
	s.heldBy("", aGPU("gpu0"))
}

// TestDirectoryLifecycle: lent, emptied on release, and not lent again while anything that was moved aside waits to be deleted.
func TestDirectoryLifecycle(t *testing.T) {
	s := newSite(t)
	first, second := allocated("u1", aDisk("ssd0")), allocated("u2", aDisk("ssd0"))
	s.prepare(first)
	data := s.write("ssd0")
	s.unprepare("u1")
	if there(data) {
		t.Fatal("the content stayed in its place")
	}
	// As a plugin leaves it that was killed, or had too much to delete at once.
	dir, err := hostdir.Open(s.disk("ssd0"))
	check.Must(t, err)
	defer dir.Close()
	s.write("ssd0")
	check.Must(t, dir.SetAside(t.Context(), "u1"))
	if _, err := s.ask(second); !errors.Is(err, hostdir.ErrDirty) {
		t.Fatalf("error %v, want ErrDirty", err)
	}
	s.records()
	check.Must(t, dir.Purge(t.Context()))
	s.prepare(second)
	entries, err := os.ReadDir(s.disk("ssd0"))
	if err != nil || len(entries) > 0 {
		t.Errorf("the next claim finds %v (%v)", entries, err)
	}
}

// TestPrepareMakesGood: whoever took the links away that say who holds what, the next call brings them back. The mode that a pod gave
// its directory is its own affair.
func TestPrepareMakesGood(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aDisk("ssd0"))
	s.prepare(c)
	check.Must(t, os.RemoveAll(s.statePath("owners")))
	check.Must(t, os.Chmod(s.disk("ssd0"), 0o700))
	s.prepare(c)
	s.heldBy("u1", aDisk("ssd0"))
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v (%v), want the pod's", info.Mode(), err)
	}
}

func TestDirectoryKept(t *testing.T) {
	s := newSite(t)
	data := s.write("ssd0")
	if r := s.prepare(ofClass(allocated("u1", aDisk("ssd0")), keepContent)); len(r.Steps) > 0 {
		t.Errorf("steps %v", r.Steps)
	}
	s.unprepare("u1")
	if !there(data) {
		t.Error("kept content is gone")
	}
}

func TestRefusedClaimLeavesNothing(t *testing.T) {
	s := newSite(t)
	_, err := s.ask(ofClaim(allocated("u1", aGPU("gpu0")), `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":"red"}`))
	refused, ok := errors.AsType[*claim.RefusedError](err)
	if !ok || refused.Reason != claim.ReasonConfigInvalid || !strings.Contains(err.Error(), "colour") {
		t.Errorf("error %v, want a refusal that names the field", err)
	}
	s.records()
}

func TestPrepareHonoursDeadline(t *testing.T) {
	s := newSite(t)
	hold, err := s.Store.LockAll(t.Context())
	check.Must(t, err)
	defer hold.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Prepare(ctx, allocated("u1", aGPU("gpu0")), s.now()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// TestAllocationOfOthers: results of other drivers are none of ours, and a claim with nothing else is prepared and given back.
func TestAllocationOfOthers(t *testing.T) {
	s := newSite(t)
	other := result("x", device.KindGPU, "gpu0")
	other.Driver = "gpu.example.com"
	if r := s.prepare(allocated("u1", other)); len(r.Devices) > 0 {
		t.Errorf("devices %+v", r.Devices)
	}
	s.prepare(allocated("u2", aGPU("gpu0")))
	s.unprepare("u1")
	s.records("u2")
}

// TestShareAfterPolicyChange: an administrator changes how all shares of a GPU take turns, and the machine is rebooted. Each share gets
// what the policy says now, in any order, and again; a share that kubelet has not asked for yet keeps no other from it.
func TestShareAfterPolicyChange(t *testing.T) {
	s := newSite(t)
	strategy := v1alpha1.SharingExclusive
	policy := func(r *claim.Result) {
		config := *r.Config.GPU
		config.Strategy = strategy
		r.Config.GPU = &config
	}
	s.effects.settle = policy
	one, other := allocated("u1", share(aGPU("gpu0"), "s1")), allocated("u2", share(aGPU("gpu0"), "s2"))
	s.prepare(one)
	s.prepare(other)
	s = s.reboot()
	s.effects.settle = policy
	strategy = v1alpha1.SharingTimeSlicing
	s.prepare(allocated("u3", share(aGPU("gpu0"), "s3")))
	s.prepare(one)
	s.prepare(one)
	s = s.restart()
	s.effects.settle = policy
	s.reported()
	s.prepare(one)
	s.prepare(other)
	s.prepare(other)
	s.prepare(allocated("u4", share(aGPU("gpu0"), "s4")))
	for _, uid := range []string{"u1", "u2", "u3", "u4"} {
		if got := s.load(uid).Devices[0].Setting; got != "strategy TimeSlicing" {
			t.Errorf("claim %s has %q", uid, got)
		}
	}
	strategy = v1alpha1.SharingExclusive
	if _, err := s.ask(allocated("u5", share(aGPU("gpu0"), "s5"))); !isInUse(err) {
		t.Errorf("error %v, want that the shares of this boot have another setting", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// What TestModel found about claims whose records are damaged and parts that the machine does not list, each by itself.

// TestDoubtOnFullDisk: a claim whose record is damaged is given back while the disk has no room for another record.
func TestDoubtOnFullDisk(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	data := s.write("ssd0")
	s.damage("u1")
	s.files.Set(fault.Full(0))
	s.unprepare("u1")
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	if there(data) || s.Store.InDoubt("u1") {
		t.Error("the claim is not given back")
	}
}

// TestDoubtEndsLater: a claim whose record is damaged has a new one, and what was set aside is still there, as when the process ends in
// between. When the claim is prepared it is in doubt no more: shared files are swept, and nobody is told to delete its pod.
func TestDoubtEndsLater(t *testing.T) {
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"with steps": allocated("u1", aGPU("gpu0"), aDisk("ssd0")), "without": allocated("u1", aGPU("gpu0")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.prepare(c)
			s.damage("u1")
			s.files.Before = func(op fault.Op) error {
				if op.Kind == fault.Remove && filepath.Base(filepath.Dir(op.Path)) == "damaged" {
					return errInjected
				}
				return nil
			}
			_, err := s.ask(c)
			check.WantErr(t, err, errInjected)
			s.files.Before = nil
			s = s.restart()
			s.prepare(c)
			if err := s.Store.CheckDoubt(); err != nil {
				t.Error(err)
			}
			s.heldBy("u1", aGPU("gpu0"))
			s.unprepare("u1")
			s.records()
		})
	}
}

// TestRemainsOfLostRecord: what a claim has on the node and no record names, as after a record was made again when objects had changed, is
// undone once the claim is gone. What claims have that are prepared or in doubt stays.
func TestRemainsOfLostRecord(t *testing.T) {
	const mark = "test.mark"
	s := newSite(t)
	s.kubeletHolds()
	marked := map[string]bool{"u0": true, "u1": true, "u2": true}
	s.effects.claims = func() []string { return slices.Sorted(maps.Keys(marked)) }
	undone := func() (uids []string) {
		s.kinds[mark] = step.Kind{Undo: step.Do(func(_ context.Context, p *struct{ UID string }) error {
			delete(marked, p.UID)
			return nil
		})}
		s.collection.pass(t.Context(), nil)
		s.operations.wg.Wait()
		return slices.Sorted(maps.Keys(marked))
	}
	s.effects.leftovers = func(_ context.Context, uid string, d device.Device) ([]step.Step, error) {
		if d.Name != "" || !marked[uid] {
			return nil, nil
		}
		left, err := step.New(mark, uid, struct{ UID string }{uid})
		return []step.Step{left}, err
	}
	s.prepare(allocated("u0", aGPU("gpu0")))
	s.prepare(allocated("u1", aGPU("gpu1")))
	s.damage("u1")
	if left := undone(); !slices.Equal(left, []string{"u0", "u1"}) {
		t.Errorf("after a pass: %v", left)
	}
	s.prepare(allocated("u1", aGPU("gpu1"))) // its record is made again
	if left := undone(); !slices.Equal(left, []string{"u0", "u1"}) {
		t.Errorf("after it was prepared again: %v", left)
	}
	s.unprepare("u1")
	if left := undone(); !slices.Equal(left, []string{"u0"}) {
		t.Errorf("after its end: %v", left)
	}
}

// TestDoubtKeepsDevices: the containers of a claim whose record is damaged may run. If it cannot be prepared again, it keeps its devices
// and its data.
func TestDoubtKeepsDevices(t *testing.T) {
	for name, failure := range map[string]func(s *site) (repair func()){
		"no room for the record": func(s *site) func() {
			s.files.Set(fault.Full(0))
			return func() { s.files.Set() }
		},
		"a step fails": func(s *site) func() { return s.failing("apply", "ssd0") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
			s.prepare(c)
			data := s.write("ssd0")
			s.damage("u1")
			repair := failure(s)
			for range 2 {
				if _, err := s.ask(c); err == nil {
					t.Error("prepared")
				}
			}
			s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
			repair()
			if _, err := s.ask(allocated("u2", aGPU("gpu0"))); !isInUse(err) {
				t.Errorf("error %v, want that the claim in doubt has it", err)
			}
			s.prepare(c)
			if !there(data) {
				t.Error("the data is gone")
			}
			s.unprepare("u1")
			s.records()
		})
	}
}

// TestDoubtOfDeviceThatIsGone: a pod ends although a device of its claim, whose record is damaged, is not on the machine. Nobody gets that
// device, or what may be it by another name, before it is back and what was done to it is undone.
func TestDoubtOfDeviceThatIsGone(t *testing.T) {
	s := newSite(t)
	s.kubeletHolds()
	all := s.seen()
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.prepare(c)
	data := s.write("ssd0")
	s.damage("u1")
	s.setMachine(machine{gpu("gpu0", 0), hostDevice("disk0", "/mnt/disks/ssd0")})
	if _, err := s.ask(c); !errors.Is(err, ErrDeviceGone) {
		t.Errorf("error %v, want that the device is gone", err)
	}
	s.unprepare("u1")
	s.drop(c)
	s.heldBy("", aGPU("gpu0"))
	s.reasons()
	for range missesToCollect + 1 {
		s.collect(t.Context())
	}
	s.reported()
	_, err := s.ask(allocated("u2", aDisk("disk0")))
	overlap, ok := errors.AsType[*conflict.OverlapError](err)
	if !ok || !overlap.Unknown || !strings.Contains(err.Error(), "holds as ssd0, which is not on") {
		t.Errorf("error %v, want that the directory may be the other claim's", err)
	}
	s.setMachine(all)
	if _, err := s.ask(allocated("u3", aDisk("ssd0"))); !isInUse(err) {
		t.Errorf("error %v, want that it is not given back yet", err)
	}
	s.atRest("u1") // what the collections before began has ended
	s.collect(t.Context())
	s.reported("ClaimCollected u1")
	if there(data) {
		t.Error("the data is still there")
	}
	s.prepare(allocated("u3", aDisk("ssd0")))
}

// TestDoubtWithNewRecord: the record that was made again for the release is without a device that was away then. When that is back, nobody
// gets it before what was done to it is undone.
func TestDoubtWithNewRecord(t *testing.T) {
	s := newSite(t)
	s.kubeletHolds()
	all := s.seen()
	c := allocated("u1", aDisk("ssd0"), aDisk("ssd1"))
	s.prepare(c)
	data := s.write("ssd1")
	s.damage("u1")
	s.setMachine(machine{ssd("ssd0")})
	repair := s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	s.inPhase("u1", record.Releasing)
	s.setMachine(all)
	check.Must(t, s.Store.SweepOwners())
	isHeld := func() {
		t.Helper()
		if _, err := s.ask(allocated("u2", aDisk("ssd1"))); !isInUse(err) {
			t.Errorf("error %v, want that the claim in doubt has it", err)
		}
	}
	isHeld()
	repair()
	s.tidy()
	isHeld()
	s.drop(c)
	for range missesToCollect {
		s.collect(t.Context())
	}
	if there(data) {
		t.Error("the data is still there")
	}
	s.prepare(allocated("u2", aDisk("ssd1")))
}

// TestDamagedRecordIsCollected although nobody asked for its claim since it was damaged.
func TestDamagedRecordIsCollected(t *testing.T) {
	s := newSite(t)
	s.kubeletHolds()
	c := allocated("u1", aGPU("gpu0"))
	s.prepare(c)
	s.damage("u1")
	s.drop(c)
	for range missesToCollect {
		s.collect(t.Context())
	}
	s.heldBy("", aGPU("gpu0"))
	s.records()
}

// TestHeldPartIsNotListed: a claim holds a part of a card, and the machine does not list that any more. What overlaps it is refused.
func TestHeldPartIsNotListed(t *testing.T) {
	half0, half1, whole := partOf("card", "card-half0", 0, "1"), partOf("card", "card-half1", 1, "1"), partOf("card", "card", 2, "2")
	for name, tc := range map[string]struct {
		held    string
		listed  machine
		asked   string
		refused bool
	}{
		"the whole":                {"card-half0", machine{half1, whole}, "card", true},
		"the other part":           {"card-half0", machine{half1, whole}, "card-half1", false},
		"a part":                   {"card", machine{half0, half1}, "card-half0", true},
		"a whole without counters": {"card", machine{gpu("card", 2)}, "card", true},
		"another card":             {"card-half0", machine{gpu("card2", 3)}, "card2", false},
		"the whole of a card that is no longer divided": {"card-half0", machine{gpu("card", 2)}, "card", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.setMachine(machine{half0, half1, whole})
			s.prepare(allocated("u1", aGPU(tc.held)))
			s.setMachine(tc.listed)
			s = s.restart()
			_, err := s.ask(allocated("u2", aGPU(tc.asked)))
			if (err != nil) != tc.refused || err != nil && Reason(err) != "DeviceInUse" {
				t.Errorf("error %v, refused: %v", err, tc.refused)
			}
			if got := s.load("u1").Phase; got != record.Prepared {
				t.Errorf("the holder is %s", got)
			}
			s.unprepare("u1")
			_, err = s.ask(allocated("u2", aGPU(tc.asked)))
			check.Must(t, err)
		})
	}
}

// TestRenamedWhileInDoubt: the record that was made again for a release says what the claim holds, so that nobody gets it by another name.
func TestRenamedWhileInDoubt(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	s.damage("u1")
	repair := s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	s.inPhase("u1", record.Releasing)
	repair()
	s.setMachine(machine{hostDevice("disk0", "/mnt/disks/ssd0"), gpu("gpu0", 0)})
	s = s.restart()
	second := allocated("u2", aDisk("disk0"))
	_, err := s.ask(second)
	if Reason(err) != "DeviceInUse" {
		t.Errorf("error %v, want that the other claim has it", err)
	}
	s.tidy()
	s.prepare(second)
}

// TestLongNames: on a node with a long name, a directory that was renamed is not given to another claim, and what a claim with a damaged
// record holds of a device that is gone is not forgotten.
func TestLongNames(t *testing.T) {
	s := newSite(t)
	s.Node = strings.Repeat("node.", 40) + "example"
	first, second := strings.Repeat("disk", 15)+"1", strings.Repeat("disk", 15)+"2"
	ofNode := func(name string) apiResult {
		r := aDisk(name)
		r.Pool = s.Node + "/host"
		return r
	}
	s.setMachine(machine{hostDevice(first, "/mnt/disks/ssd0")})
	s.prepare(allocated("u1", ofNode(first)))
	s.setMachine(machine{hostDevice(second, "/mnt/disks/ssd0")})
	if _, err := s.ask(allocated("u2", ofNode(second))); Reason(err) != "DeviceInUse" {
		t.Errorf("error %v, want that the other claim has it", err)
	}
	s.damage("u1")
	s.unprepare("u1")
	if !s.Store.InDoubt("u1") {
		t.Error("nobody knows any more that the claim held something")
	}
	s.setMachine(machine{hostDevice(first, "/mnt/disks/ssd0")})
	s.unprepare("u1")
	s.prepare(allocated("u2", ofNode(first)))
}

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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// cutOff leaves a claim of a GPU and a disk halfway, as a process does that ends while the disk is lent.
func (s *site) cutOff(uid string) {
	s.t.Helper()
	g := s.guard("ssd0")
	asked := s.asking(allocated(uid, aGPU("gpu0"), aDisk("ssd0")))
	s.at(g, "apply")
	s.Stop()
	if got := receive(s.t, asked); got.err == nil {
		s.t.Fatal("prepared by a process that has ended")
	}
}

// TestFirstRound puts everything in order that earlier processes left: what is halfway is undone, what is prepared is whole, and what
// is of an earlier boot waits for kubelet.
func TestFirstRound(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("old", aDisk("ssd1")))
		s = s.reboot()
		prepared := allocated("whole", aGPU("gpu1"))
		first := s.prepare(prepared)
		s.cutOff("half")
		check.Must(t, os.RemoveAll(s.cdiDir()))
		check.Must(t, os.Chmod(s.disk("ssd1"), 0o755))

		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		d := next.diary()
		expected := next.tidy()
		if diff := cmp.Diff([]string{"undo ssd0"}, d.take()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		next.records("old", "whole")
		if !next.Specs.Has(first.Devices[0].CDIDevice) || len(expected) != 2 {
			t.Errorf("expects %v: the prepared claim's spec and its device's name must be there and be watched", expected)
		}
		reasons := next.reasons()
		slices.Sort(reasons)
		if diff := cmp.Diff([]string{"RolledBack half", "SpecRestored whole"}, reasons); diff != "" {
			t.Errorf("incidents (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(first, next.prepare(prepared), sameRecord()); diff != "" {
			t.Errorf("answer (-before +after):\n%s", diff)
		}
		next.prepare(allocated("old", aDisk("ssd1")))
		if diff := cmp.Diff([]string{"apply ssd1"}, d.take()); diff != "" {
			t.Errorf("steps of the renewal (-want +got):\n%s", diff)
		}
	})
}

// TestOldBootIsAuthorisedAgain: a claim of an earlier boot is resolved again, so that what is forbidden now is not prepared again; it
// keeps what it holds until kubelet gives it back.
func TestOldBootIsAuthorisedAgain(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	s.write("ssd0")
	s = s.reboot()
	s.tidy()
	_, err := s.ask(ofClass(allocated("u1", aDisk("ssd0")), onlyTeamB))
	if refused, ok := errors.AsType[*claim.RefusedError](err); !ok || refused.Reason != claim.ReasonNamespaceNotAllowed {
		t.Errorf("error %v, want that the namespace is not allowed", err)
	}
	s.heldBy("u1", aDisk("ssd0"))
	s.unprepare("u1")
	s.heldBy("", aDisk("ssd0"))
}

// TestHalfwayIsResumed: kubelet asks for a claim before the first round came to it.
func TestHalfwayIsResumed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		next.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
		if got := next.Recovering(); len(got) > 0 {
			t.Errorf("recovers %v although kubelet was told that they are prepared", got)
		}
		next.tidy()
		next.records("u1")
		next.reported()
	})
}

// TestResumeGoesOn: what is done is not done again, and where the rest fails all of it is undone.
func TestResumeGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		c := allocated("u1", aDisk("ssd1"), aDisk("ssd0"))
		g := s.guard("ssd0")
		asked := s.asking(c)
		s.at(g, "apply")
		next := s.restart()
		receive(t, asked)
		d := next.diary()
		repair := next.failing("apply", "ssd0")
		if _, err := next.ask(c); !errors.Is(err, errInjected) {
			t.Errorf("error %v, want the step's", err)
		}
		if diff := cmp.Diff([]string{"undo ssd0", "undo ssd1"}, d.take()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		next.records()
		repair()

		g = next.guard("ssd0")
		asked = next.asking(c)
		next.at(g, "apply")
		last := next.restart()
		receive(t, asked)
		d = last.diary()
		last.prepare(c)
		if diff := cmp.Diff([]string{"apply ssd0"}, d.take()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

// TestHalfwayFetchesBefore: what a claim needs that was halfway prepared is fetched before it is locked, and for the plan that counts.
// Others may share its devices.
func TestHalfwayFetchesBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		reboots bool
		minor   int64
	}{"this boot": {false, 0}, "another boot": {true, 0}, "another number": {false, 8}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				s.cutOff("u1")
				s.setMachine(machine{gpu("gpu0", tt.minor), ssd("ssd0")})
				begin := s.restart
				if tt.reboots {
					begin = s.reboot
				}
				next := begin()
				fetched := map[bool]bool{}
				restored := false
				next.effects.fetch = func(r *Request) func(context.Context) error {
					fetched[r.AfterReboot] = true
					return nil
				}
				next.effects.restore = func(context.Context) error {
					hold, err := next.Store.TryLockClaim("u1")
					check.Must(t, err)
					if hold != nil {
						hold.Release()
						restored = true
					} else if !restored {
						t.Error("what was lost is fetched while the claim is locked")
					}
					return nil
				}
				next.effects.plan = func(_ context.Context, r Request) (Contribution, error) {
					if !fetched[r.AfterReboot] {
						t.Errorf("planned without a fetch before (after a reboot: %v)", r.AfterReboot)
					}
					return Contribution{}, nil
				}
				next.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
				next.inPhase("u1", record.Prepared)
			})
		})
	}
}

// TestHalfwayOfAnotherBoot: what was begun in an earlier boot, or for numbers that the device no longer has, is not what kubelet gets
// now.
func TestHalfwayOfAnotherBoot(t *testing.T) {
	tests := map[string]struct {
		reboots bool
		minor   int64
	}{"another boot": {true, 0}, "another boot and number": {true, 8}, "another number": {false, 8}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				s.cutOff("u1")
				s.setMachine(machine{gpu("gpu0", tt.minor), ssd("ssd0")})
				begin := s.restart
				if tt.reboots {
					begin = s.reboot
				}
				next := begin()
				r := next.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
				if r.BootID != s.clock.BootID() || r.Devices[0].Edits.Nodes[0].Minor != tt.minor {
					t.Errorf("record of boot %s with node %+v", r.BootID, r.Devices[0].Edits.Nodes[0])
				}
				if diff := cmp.Diff(r, next.load("u1"), sameRecord()); diff != "" {
					t.Errorf("stored (-answered +stored):\n%s", diff)
				}
			})
		})
	}
}

// TestHalfwayIsUnprepared: the pod is gone by the time the next process runs.
func TestHalfwayIsUnprepared(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		next.unprepare("u1")
		next.records()
		if got := next.Recovering(); len(got) > 0 {
			t.Errorf("still recovering %v", got)
		}
		next.tidy()
		next.reported()
	})
}

// TestSharersAreRecovered: a device that interrupted claims share is free when the last of them is undone, whichever is undone first.
func TestSharersAreRecovered(t *testing.T) {
	for stuck, disks := range map[string][2]string{"u1": {"ssd0", "ssd1"}, "u2": {"ssd1", "ssd0"}} {
		t.Run(stuck, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				for i, uid := range []string{"u1", "u2"} {
					s.prepare(allocated(uid, share(aGPU("gpu0"), types.UID(uid)), aDisk(disks[i])))
					check.Must(t, s.Store.Advance(s.load(uid), record.Change{Phase: record.Releasing}))
				}
				next := s.newEngine()
				check.Must(t, next.Index(t.Context()))
				repair := next.failing("undo", "ssd0")
				next.tidy()
				next.records(stuck)
				want := map[[2]string]string{{"node-1/gpu", "gpu0"}: stuck, {"node-1/host", "ssd0"}: stuck}
				if diff := cmp.Diff(want, next.Recovering()); diff != "" {
					t.Errorf("recovering (-want +got):\n%s", diff)
				}
				repair()
				next.tidy()
				if got := next.Recovering(); len(got) > 0 {
					t.Errorf("still recovering %v", got)
				}
				next.records()
			})
		})
	}
}

// TestUndoFailsInRecovery: a step that cannot be undone keeps its record and its devices, says so, and is tried again.
func TestUndoFailsInRecovery(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		repair := next.failing("undo", "ssd0")
		for range 2 {
			next.tidy()
			next.inPhase("u1", record.Releasing)
			next.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
			next.reported("RecoveryFailed u1")
			want := map[[2]string]string{{"node-1/gpu", "gpu0"}: "u1", {"node-1/host", "ssd0"}: "u1"}
			if diff := cmp.Diff(want, next.Recovering()); diff != "" {
				t.Errorf("recovering (-want +got):\n%s", diff)
			}
			if _, err := next.ask(allocated("u2", aDisk("ssd0"))); !isInUse(err) {
				t.Errorf("the next claim: error %v, want that the device is in use", err)
			}
		}
		repair()
		changes := 0
		next.collection.pass(t.Context(), func() { changes++ })
		next.operations.wg.Wait()
		if changes == 0 {
			t.Error("nobody was told that devices are free")
		}
		next.records()
		next.reported("RolledBack u1")
		if got := next.Recovering(); len(got) > 0 {
			t.Errorf("still recovering %v", got)
		}
		next.prepare(allocated("u2", aDisk("ssd0")))
	})
}

// TestFailedUnprepareIsRecovered: an Unprepare that could not undo everything is finished by a later round, though kubelet gives up.
func TestFailedUnprepareIsRecovered(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	data := s.write("ssd0")
	repair := s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err == nil {
		t.Fatal("given back")
	}
	repair()
	s.tidy()
	s.records()
	if there(data) {
		t.Error("the data is still there")
	}
}

// TestStuckRecoveryHoldsUpNothing: one device that does not come back delays no other, however long it takes, and its end is noticed.
func TestStuckRecoveryHoldsUpNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		g := next.guard("ssd0")
		freed := make(chan struct{}, 100)
		next.collection.pass(t.Context(), func() { freed <- struct{}{} })
		next.at(g, "undo")
		next.prepare(allocated("u2", aGPU("gpu1"), aDisk("ssd1")))
		if _, err := next.ask(allocated("u3", aGPU("gpu0"))); !errors.Is(err, record.ErrBusy) {
			t.Errorf("the device that is being put in order: error %v, want ErrBusy", err)
		}
		next.collection.pass(t.Context(), nil)
		synctest.Wait()
		for len(freed) > 0 {
			<-freed
		}
		next.reasons() // that it takes long
		g.open()
		synctest.Wait()
		if len(freed) == 0 {
			t.Error("nobody was told that devices are free")
		}
		next.records("u2")
		next.reported("RolledBack u1")
		next.prepare(allocated("u3", aGPU("gpu0")))
	})
}

// TestRoundsAndCalls: kubelet asks for a claim while it is being put in order, and gets it then; and gives back another.
func TestRoundsAndCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		g := next.guard("ssd0")
		next.collection.pass(t.Context(), nil)
		next.at(g, "undo")
		asked := next.asking(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
		synctest.Wait()
		g.open()
		got := receive(t, asked)
		check.Must(t, got.err)
		next.isWhole(got.record)
	})
}

// TestUnprepareDuringRecovery: kubelet gives a claim back while it is being put in order.
func TestUnprepareDuringRecovery(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.cutOff("u1")
		next := s.newEngine()
		check.Must(t, next.Index(t.Context()))
		g := next.guard("ssd0")
		next.collection.pass(t.Context(), nil)
		next.at(g, "undo")
		back := next.unpreparing("u1")
		synctest.Wait()
		g.open()
		check.Must(t, receive(t, back).err)
		next.operations.wg.Wait()
		next.records()
		if got := next.Recovering(); len(got) > 0 {
			t.Errorf("still recovering %v", got)
		}
		next.reported() // nothing failed
	})
}

// TestRecoveryLooksAgain: what was halfway when it was looked at may be prepared by the time it is its turn.
func TestRecoveryLooksAgain(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	seen := s.load("u1")
	seen.Phase = record.Intended
	gone := s.load("u1")
	gone.UID, gone.Phase = "u2", record.Intended
	s.collection.recover(t.Context(), seen, nil)
	s.collection.recover(t.Context(), gone, nil)
	s.operations.wg.Wait()
	s.inPhase("u1", record.Prepared)
	s.reported()
}

// TestIndexSweeps: the start removes what cut off writes and releases left in the state directory, and makes links anew that a power
// loss took.
func TestIndexSweeps(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	check.Must(t, os.RemoveAll(s.statePath("owners")))
	check.Must(t, os.MkdirAll(s.statePath("owners", "node-1_gpu_gpu1"), 0o700))
	link := s.statePath("owners", "node-1_gpu_gpu1", "u0")
	check.Must(t, os.Symlink("whole", link))
	temporary := s.statePath("claims", ".tmp-u0.json-01234567")
	check.Must(t, os.WriteFile(temporary, []byte("{"), 0o600))
	s = s.restart()
	s.heldBy("u1", aGPU("gpu0"))
	for _, path := range []string{link, temporary} {
		if there(path) {
			t.Errorf("%s is still there", path)
		}
	}
	s.records("u1")
	s.reported()
}

func (p *place) recordFile(uid string) string { return p.statePath("claims", uid+".json") }

// damage makes a claim's record unreadable, as a bad block does.
func (p *place) damage(uid string) {
	p.t.Helper()
	check.Must(p.t, os.WriteFile(p.recordFile(uid), []byte("{\"format\":2,\"reader\":2,\"length\":3,\"crc32c\":\"00000000\"}\nabc\n"), 0o600))
}

// TestDamagedRecord: a record that cannot be read is set aside and hurts its claim only. No other claim gets its devices, the claim
// itself can be prepared again, and keeps its data.
func TestDamagedRecord(t *testing.T) {
	s := newSite(t)
	broken, sound := allocated("broken", aGPU("gpu0"), aDisk("ssd0")), allocated("sound", aGPU("gpu1"))
	first := s.prepare(broken)
	data := s.write("ssd0")
	want := s.prepare(sound)
	s.damage("broken")
	s = s.restart()
	s.reported("RecordDamaged broken")
	s.tidy()
	s.records("sound")
	s.heldBy("broken", aGPU("gpu0"), aDisk("ssd0"))
	for _, d := range []apiResult{aGPU("gpu0"), aDisk("ssd0")} {
		_, err := s.ask(allocated("other", d))
		if inUse, ok := errors.AsType[*record.InUseError](err); !ok || inUse.Owner.UID != "broken" {
			t.Errorf("error %v, want that %s is the broken claim's", err, d.Device)
		}
	}
	if diff := cmp.Diff(want, s.prepare(sound), sameRecord()); diff != "" {
		t.Errorf("the sound claim (-before +after):\n%s", diff)
	}
	if !there(data) {
		t.Fatal("the data of a running pod was taken")
	}
	again := s.prepare(broken)
	if s.Store.InDoubt("broken") {
		t.Error("still in doubt")
	}
	if diff := cmp.Diff(first.Devices, again.Devices); diff != "" {
		t.Errorf("prepared again (-before +after):\n%s", diff)
	}
	if !there(data) {
		t.Error("the data of a running pod was taken")
	}
	s.reported()
	s = s.restart()
	s.reported()
	s.unprepare("broken")
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
	if there(data) {
		t.Error("the data is still there")
	}
}

// TestDamagedRecordIsUnprepared: the claim gives back what its links say that it had, emptied.
func TestDamagedRecordIsUnprepared(t *testing.T) {
	for name, restarts := range map[string]bool{"found at the start": true, "found by the call": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.prepare(ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
			data := s.write("ssd0")
			s.damage("u1")
			if restarts {
				s = s.restart()
			}
			s.unprepare("u1")
			s.reported("RecordDamaged u1")
			s.records()
			s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
			if there(data) {
				t.Error("the data is still there")
			}
			s.tidy()
			if there(s.ownSpecPath("u1")) {
				t.Error("the claim's own spec is still there")
			}
			s.prepare(allocated("u2", aGPU("gpu0"), aDisk("ssd0")))
			if s.Store.InDoubt("u1") {
				t.Error("still in doubt")
			}
		})
	}
}

// TestDamagedRecordOfAnotherAllocation: a claim whose record is lost and that has other devices now, so another pod, leaves nothing of
// the last one's behind. Where it has the same devices, that pod may still run, and keeps what it wrote.
func TestDamagedRecordOfAnotherAllocation(t *testing.T) {
	before := []apiResult{aGPU("gpu0"), aDisk("ssd0")}
	tests := map[string]struct {
		now, freed []apiResult
		empties    bool
	}{
		"the same":                {now: before},
		"in another order":        {now: []apiResult{aDisk("ssd0"), aGPU("gpu0")}},
		"other devices":           {now: []apiResult{aGPU("gpu1"), aDisk("ssd1")}, freed: before, empties: true},
		"another directory":       {now: []apiResult{aGPU("gpu0"), aDisk("ssd1")}, freed: []apiResult{aDisk("ssd0")}, empties: true},
		"another GPU":             {now: []apiResult{aGPU("gpu1"), aDisk("ssd0")}, freed: []apiResult{aGPU("gpu0")}, empties: true},
		"the directory is a look": {now: []apiResult{aGPU("gpu0"), asAdmin(aDisk("ssd0"))}, freed: []apiResult{aDisk("ssd0")}, empties: true},
	}
	for name, tt := range tests {
		for how, restarts := range map[string]bool{"found at the start": true, "found by the call": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				s := newSite(t)
				s.prepare(allocated("u1", before...))
				data := s.write("ssd0")
				s.damage("u1")
				if restarts {
					s = s.restart()
				}
				r := s.prepare(allocated("u1", tt.now...))
				if there(data) == tt.empties {
					t.Errorf("the data is there: %v, want %v", there(data), !tt.empties)
				}
				s.heldBy("", tt.freed...)
				for i := range r.Devices {
					if d := tt.now[i]; d.AdminAccess == nil {
						s.heldBy("u1", d)
					}
				}
				s.records("u1")
				if s.Store.InDoubt("u1") {
					t.Error("still in doubt")
				}
				s.reported("RecordDamaged u1")
				s.unprepare("u1")
				s.heldBy("", append(tt.freed, tt.now...)...)
			})
		}
	}
}

// TestDamagedRecordIsInTheWay: what a claim had, whose record is lost, is given back before it gets anything else, and kept from
// everybody where that fails.
func TestDamagedRecordIsInTheWay(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	data := s.write("ssd0")
	s.damage("u1")
	v, repair := s.listen(), s.failing("undo", "ssd0")
	next := allocated("u1", aDisk("ssd1"))
	for range 2 {
		if _, err := s.ask(next); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "held before") {
			t.Errorf("error %v, want the step's, and what it was about", err)
		}
		v.are(t, "told", "quarantine u1 ssd0: injected")
		s.inPhase("u1", record.Releasing)
		s.heldBy("u1", aDisk("ssd0"))
		s.heldBy("", aDisk("ssd1"))
	}
	repair()
	s.prepare(next)
	v.are(t, "told after the repair", "clear u1 ssd0")
	s.heldBy("", aDisk("ssd0"))
	if there(data) {
		t.Error("the next claim finds the data")
	}
}

// TestDamagedRecordWaitsForItsDevices: what is given back is locked as what is asked for is.
func TestDamagedRecordWaitsForItsDevices(t *testing.T) {
	for name, begin := range map[string]func(s *site) <-chan answer{
		"prepare":   func(s *site) <-chan answer { return s.asking(allocated("u1", aDisk("ssd1"))) },
		"unprepare": func(s *site) <-chan answer { return s.unpreparing("u1") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site) {
				s.prepare(allocated("u1", aDisk("ssd0")))
				data := s.write("ssd0")
				s.damage("u1")
				hold, err := s.Store.LockClaim(t.Context(), "another")
				check.Must(t, err)
				check.Must(t, hold.Devices(t.Context(), []string{"node-1/host/ssd0"}))
				answers := begin(s)
				synctest.Wait()
				if !there(data) {
					t.Error("emptied while somebody else has the device")
				}
				hold.Release()
				check.Must(t, receive(t, answers).err)
				if there(data) {
					t.Error("the data is still there")
				}
			})
		})
	}
}

// TestDamagedRecordBeforeTheFirstLook: kubelet may give a claim back before the machine was looked at.
func TestDamagedRecordBeforeTheFirstLook(t *testing.T) {
	s := newSite(t)
	before := s.seen()
	s.prepare(allocated("u1", aDisk("ssd0")))
	data := s.write("ssd0")
	s.damage("u1")
	s.setMachine(nil)
	s = s.restart()
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err == nil {
		t.Error("given back without knowing what it had")
	}
	s.heldBy("u1", aDisk("ssd0"))
	s.setMachine(before)
	s.unprepare("u1")
	if there(data) {
		t.Error("the data is still there")
	}
}

// TestDamagedRecordOfDirtyDirectory: what one claim left is not the next one's, also where the directory holds what looks like an
// earlier claim's remains.
func TestDamagedRecordOfDirtyDirectory(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	data := s.write("ssd0")
	check.Must(t, os.Mkdir(filepath.Join(s.disk("ssd0"), ".fettle-trash-mine"), 0o700))
	s.damage("u1")
	s.unprepare("u1")
	s.heldBy("", aDisk("ssd0"))
	if there(data) {
		t.Error("the data is still there")
	}
}

// TestForeignRecord: what only a newer Fettle understands is left alone, with its devices, and its files.
func TestForeignRecord(t *testing.T) {
	s := newSite(t)
	theirs := ofClaim(allocated("theirs", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	s.prepare(theirs)
	data := s.write("ssd0")
	content, err := os.ReadFile(s.recordFile("theirs"))
	check.Must(t, err)
	foreign := strings.Replace(string(content), `"format":2,"reader":2`, `"format":9,"reader":9`, 1)
	check.Must(t, os.WriteFile(s.recordFile("theirs"), []byte(foreign), 0o600))
	s = s.restart()
	s.reported("RecordForeign theirs")
	s.setMachine(machine{gpu("gpu0", 6), gpu("gpu1", 1), ssd("ssd0"), ssd("ssd1")})
	files := s.entries(s.cdiDir())
	s.prepare(allocated("ours", aGPU("gpu1")))
	s.unprepare("ours")
	_ = s.collection.pass(t.Context(), nil)
	for _, name := range files {
		if !there(filepath.Join(s.cdiDir(), name)) {
			t.Errorf("%s is gone: the record may name it", name)
		}
	}
	if _, err := s.ask(allocated("ours", aDisk("ssd0"))); !isInUse(err) {
		t.Errorf("error %v, want that the device is in use", err)
	}
	if _, err := s.ask(theirs); !errors.Is(err, record.ErrForeign) {
		t.Errorf("prepare: error %v, want ErrForeign", err)
	}
	if _, err := s.Unprepare(t.Context(), "theirs", s.now()); !errors.Is(err, record.ErrForeign) {
		t.Errorf("unprepare: error %v, want ErrForeign", err)
	}
	if after, err := os.ReadFile(s.recordFile("theirs")); err != nil || string(after) != foreign {
		t.Errorf("the record was changed (%v)", err)
	}
	if !there(data) {
		t.Error("the data was taken")
	}
}

// TestKnows is what lets pods that have their claim keep it while the node retires.
func TestKnows(t *testing.T) {
	s := newSite(t)
	if s.HasRecord("u1") {
		t.Error("knows a claim that was never prepared")
	}
	s.prepare(allocated("u1", aGPU("gpu0")))
	if !s.HasRecord("u1") {
		t.Error("does not know a claim that is prepared")
	}
	s.damage("u1")
	if !s.HasRecord("u1") {
		t.Error("does not know a claim whose record cannot be read")
	}
	s = s.restart()
	if !s.HasRecord("u1") {
		t.Error("does not know a claim whose record was set aside")
	}
	s.unprepare("u1")
	if s.HasRecord("u1") {
		t.Error("knows a claim that was given back")
	}
}

// TestHungDeviceDelaysNobody: the check of one claim, and the release of another that is lost, never end. Everybody else's specs come back,
// and lost claims are given back; nothing is begun twice.
func TestHungDeviceDelaysNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.kubeletHolds("u1", "u3")
		hung := s.prepare(allocated("u1", aDisk("ssd0")))
		s.prepare(allocated("u2", aDisk("ssd1")))
		other := s.prepare(allocated("u3", aGPU("gpu0")))
		s.prepare(allocated("u4", aGPU("gpu1")))
		for _, uid := range []string{"u2", "u4"} {
			s.drop(allocated(uid))
		}
		kind, goOn := s.kinds["host.scratch"], make(chan struct{})
		checks, undos := 0, 0
		kind.Verify = func(_ context.Context, params json.RawMessage) error {
			if strings.Contains(string(params), "ssd0") {
				checks++
				<-goOn
			}
			return nil
		}
		undo := kind.Undo
		kind.Undo = func(ctx context.Context, params json.RawMessage) error {
			undos++
			<-goOn
			return undo(ctx, params)
		}
		s.kinds["host.scratch"] = kind
		check.Must(t, os.RemoveAll(s.cdiDir()))

		start := time.Now()
		const passes = missesToCollect + 2
		for range passes {
			s.collect(t.Context())
			s.collection.pass(t.Context(), nil)
			synctest.Wait() // the next pass comes much later than what does not hang takes
		}
		if took := time.Since(start); took > 2*passes*passPatience {
			t.Errorf("%d passes took %v", passes, took)
		}
		if checks != 1 || undos != 1 {
			t.Errorf("%d checks and %d releases were begun, of one each", checks, undos)
		}
		if !s.Specs.Has(other.Devices[0].CDIDevice) || s.Specs.Has(hung.Devices[0].CDIDevice) {
			t.Error("a claim's spec is not there, or one is that was not checked")
		}
		s.heldBy("", aGPU("gpu1"))
		s.heldBy("u2", aDisk("ssd1"))

		close(goOn)
		s.tidy()
		if !s.Specs.Has(hung.Devices[0].CDIDevice) {
			t.Error("the claim that hung is not whole")
		}
		s.heldBy("", aDisk("ssd1"))
	})
}

// TestSlowAdoptionDelaysNobody: what an orphan needs may be asked of a registry that does not answer. The other claims of the pass get what
// they lost meanwhile, and the orphan is adopted when there is an answer.
func TestSlowAdoptionDelaysNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		r := s.prepare(allocated("u1", aGPU("gpu0")))
		var asked atomic.Int32
		answers := make(chan struct{})
		s.effects.orphans = func() []Orphan { return []Orphan{{UID: "left", Device: gpu("gpu1", 1)}} }
		s.effects.leftovers = func(context.Context, string, device.Device) ([]step.Step, error) {
			asked.Add(1)
			<-answers
			return nil, nil
		}
		check.Must(t, os.RemoveAll(s.cdiDir()))
		for range 2 {
			ended := make(chan struct{})
			go func() {
				s.collection.pass(t.Context(), nil)
				close(ended)
			}()
			time.Sleep(2 * passPatience)
			select {
			case <-ended:
			default:
				t.Error("the pass waits for the orphan")
			}
		}
		s.isWhole(r)
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times at once", n)
		}
		s.effects.orphans = nil
		close(answers)
		synctest.Wait()
		s.tidy()
		s.reported("SpecRestored u1")
	})
}

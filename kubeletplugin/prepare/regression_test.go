// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// What went wrong in drivers of the same sort, each with the test that it does not go wrong here.

// rewriteRecord changes the first body of a claim's record and its head, with a checksum that is right.
func (s *site) rewriteRecord(uid string, change func(head, body map[string]any)) {
	s.t.Helper()
	data, err := os.ReadFile(s.recordFile(uid))
	check.Must(s.t, err)
	lines := strings.SplitN(string(data), "\n", 3)
	var head, body map[string]any
	check.Must(s.t, json.Unmarshal([]byte(lines[0]), &head))
	check.Must(s.t, json.Unmarshal([]byte(lines[1]), &body))
	change(head, body)
	newBody, err := json.Marshal(body)
	check.Must(s.t, err)
	head["length"] = len(newBody)
	head["crc32c"] = fmt.Sprintf("%08x", crc32.Checksum(newBody, crc32.MakeTable(crc32.Castagnoli)))
	newHead, err := json.Marshal(head)
	check.Must(s.t, err)
	check.Must(s.t, os.WriteFile(s.recordFile(uid), []byte(string(newHead)+"\n"+string(newBody)+"\n"+lines[2]), 0o600))
}

// TestChecksumOutlivesNewFields. Seen: after an upgrade or a downgrade the stored state counted as corrupt and the plugin did not start
// any more, since its checksum was made of structures that had gained members.
func TestChecksumOutlivesNewFields(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	s.rewriteRecord("u1", func(head, body map[string]any) {
		head["format"] = record.FormatVersion + 1
		body["priority"] = map[string]any{"of": "a later release"}
		body["devices"].([]any)[0].(map[string]any)["lane"] = 4
	})
	s = s.restart()
	s.reported()
	s.tidy()
	if diff := cmp.Diff(first.Devices, s.prepare(c).Devices); diff != "" {
		t.Errorf("devices (-of the later release +ours):\n%s", diff)
	}
	s.unprepare("u1")
	s.records()
	s.heldBy("", aGPU("gpu0"), aDisk("ssd0"))
}

// TestRebootRewritesSpecs. Seen: the stored state outlived a reboot and said that a claim is prepared, while its specs, on a tmpfs, did
// not; or they came back with the device numbers of before.
func TestRebootRewritesSpecs(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aGPU("gpu1"), aDisk("ssd0")), atScratch, "ssd0")
	s.prepare(c)
	s.setMachine(machine{gpu("gpu0", 1), gpu("gpu1", 0), ssd("ssd0")}) // enumerated the other way round
	s = s.reboot()
	s.tidy()
	r := s.prepare(c)
	if a, b := r.Devices[0].Edits.Nodes[0].Minor, r.Devices[1].Edits.Nodes[0].Minor; a != 1 || b != 0 {
		t.Errorf("minors %d and %d, want those of this boot", a, b)
	}
	s.tidy()
	s.isWhole(r)
}

// TestWipedSpecsComeBack. Seen: only the spec directory was wiped, and kubelet does not ask again for what it knows to be prepared.
// See also TestWipedDirectory.
func TestWipedSpecsComeBack(t *testing.T) {
	s := newSite(t)
	r := s.prepare(allocated("u1", aGPU("gpu0")))
	check.Must(t, os.RemoveAll(s.cdiDir()))
	s.tidy()
	s.isWhole(r)
}

// TestLostClaimsAreCollected. Seen: claims whose pods are gone, with no Unprepare to come, kept their devices for ever; or only those in
// one of the states were found. See also TestCollectInEveryState.
func TestLostClaimsAreCollected(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.prepare(allocated("old", aDisk("ssd1")))
		s = s.reboot()
		s.prepare(allocated("prepared", aGPU("gpu1")))
		s.cutOff("half")
		s = s.newEngine()
		check.Must(t, s.Index(t.Context()))
		for _, uid := range []string{"old", "prepared", "half"} {
			s.drop(allocated(uid))
		}
		s.kubeletHolds()
		for range missesToCollect {
			s.collect(t.Context())
		}
		s.records()
		s.heldBy("", aGPU("gpu0"), aGPU("gpu1"), aDisk("ssd0"), aDisk("ssd1"))
	})
}

// TestStalePrepareIsRefused. Seen: a Prepare that waited long came after the claim's Unprepare, and the device stayed with a claim that
// no longer was. See also TestTombstone and TestClaimIsReadAgain.
func TestStalePrepareIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		g := s.guard("ssd0")
		holder := s.asking(allocated("u1", aDisk("ssd0")))
		s.at(g, "apply")
		late := s.asking(allocated("u2", aDisk("ssd0")))
		synctest.Wait()
		s.unprepare("u2")
		g.open()
		check.Must(t, receive(t, holder).err)
		if got := receive(t, late); !errors.Is(got.err, ErrOvertaken) && !isStale(got.err) {
			t.Errorf("the late one was answered with %+v, %v", got.record, got.err)
		}
		s.records("u1")
	})
}

// TestForceDeletedPodKeepsItsDevice. Seen: for about two seconds after a pod was deleted by force its device was given to the next one,
// while the first still ran.
func TestForceDeletedPodKeepsItsDevice(t *testing.T) {
	s := newSite(t)
	old := allocated("old", aGPU("gpu0"))
	s.prepare(old)
	s.drop(old) // the API server has forgotten it; kubelet has not yet ended the pod
	next := allocated("next", aGPU("gpu0"))
	if _, err := s.ask(next); !isInUse(err) {
		t.Fatalf("error %v, want that the device is in use", err)
	}
	s.tidy()
	s.collect(t.Context())
	if _, err := s.ask(next); !isInUse(err) {
		t.Fatalf("error %v, want that the device is in use", err)
	}
	s.unprepare("old")
	s.prepare(next)
}

// TestPreparedNeverGoesBack. Seen: a second Prepare put a prepared claim's state back to "begun", and its failure then took the claim
// apart under a running pod.
func TestPreparedNeverGoesBack(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	want := s.prepare(c)
	data := s.write("ssd0")
	before, err := os.ReadFile(s.recordFile("u1"))
	check.Must(t, err)

	kind := s.kinds["host.scratch"]
	broken := kind
	broken.Verify = fail
	s.kinds["host.scratch"] = broken
	if _, err := s.ask(c); !errors.Is(err, errInjected) {
		t.Errorf("error %v, want the step's", err)
	}
	s.tidy()
	s.kinds["host.scratch"] = kind

	if after, err := os.ReadFile(s.recordFile("u1")); err != nil || string(before) != string(after) {
		t.Errorf("the record was touched (%v):\n%s", err, after)
	}
	if !there(data) {
		t.Error("the data of a running pod was taken")
	}
	if diff := cmp.Diff(want, s.prepare(c), sameRecord()); diff != "" {
		t.Errorf("answer (-first +last):\n%s", diff)
	}
}

// TestPartialPrepareIsUndone. Seen: a Prepare that failed half way left devices bound, partitions made and modes changed; or undoing it
// gave them the state of a fresh machine, not the one of before.
func TestPartialPrepareIsUndone(t *testing.T) {
	s := newSite(t)
	check.Must(t, os.Chmod(s.disk("ssd0"), 0o750)) // as the admin left it
	d := s.diary()
	s.failing("apply", "ssd1")
	kind := s.kinds["host.scratch"]
	apply := kind.Apply
	kind.Apply = func(ctx context.Context, params json.RawMessage) error {
		if r := s.load("u1"); r.Phase != record.Intended || len(r.Steps) != 2 {
			t.Errorf("an effect before the record says what is meant: %+v", r)
		}
		return apply(ctx, params)
	}
	s.kinds["host.scratch"] = kind
	if _, err := s.ask(allocated("u1", aDisk("ssd0"), aGPU("gpu0"), aDisk("ssd1"))); !errors.Is(err, errInjected) {
		t.Fatalf("error %v, want the step's", err)
	}
	if diff := cmp.Diff([]string{"apply ssd0", "undo ssd1", "undo ssd0"}, d.take()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("mode %v (%v), want the one of before", info.Mode(), err)
	}
	s.records()
	s.heldBy("", aDisk("ssd0"), aDisk("ssd1"), aGPU("gpu0"))
}

// TestBusyTeardownIsRetried. Seen: a device was busy at its release, which failed once and for all, or made the next claim fail; or the
// teardown took what it had not made.
func TestBusyTeardownIsRetried(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	other := s.prepare(allocated("u2", aDisk("ssd1")))
	data := s.write("ssd1")
	kind := s.kinds["host.scratch"]
	busy := kind
	busy.Undo = func(context.Context, json.RawMessage) error { return syscall.EBUSY }
	s.kinds["host.scratch"] = busy
	for range 3 {
		if _, err := s.Unprepare(t.Context(), "u1", s.now()); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("error %v, want EBUSY", err)
		}
	}
	s.tidy()
	if len(s.Recovering()) != 1 {
		t.Errorf("recovering %v: the device must not be offered meanwhile", s.Recovering())
	}
	s.kinds["host.scratch"] = kind
	s.unprepare("u1")
	if len(s.Recovering()) != 0 {
		t.Errorf("recovering %v", s.Recovering())
	}
	if !there(data) {
		t.Error("the teardown took another claim's data")
	}
	s.isWhole(other)
	s.heldBy("u2", aDisk("ssd1"))
}

// TestNoHardware. Seen: a node without devices, or whose driver comes late, was a plugin that crashed in a loop.
func TestNoHardware(t *testing.T) {
	for name, m := range map[string]Machine{"not looked yet": nil, "nothing found": machine{}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c := allocated("u1", aGPU("gpu0"))
			found := s.seen()
			s.setMachine(m)
			check.Must(t, s.Index(t.Context()))
			s.tidy()
			s.collect(t.Context())
			check.Must(t, s.SweepSpecs(t.Context()))
			if _, err := s.ask(c); err == nil {
				t.Error("prepared a device that is not there")
			}
			s.unprepare("u1")
			s.setMachine(found) // the driver is there now
			s.prepare(c)
		})
	}
}

// TestNumbersAreNotCached. Seen: device nodes that were remembered by time, or from the plugin's start, gave a container the numbers of a
// device that had moved. See also TestAnswerFollowsTheDevice and TestDeviceMoved.
func TestNumbersAreNotCached(t *testing.T) {
	s := newSite(t)
	for minor := range int64(5) {
		s.setMachine(machine{gpu("gpu0", minor)})
		uid := fmt.Sprintf("u%d", minor)
		if r := s.prepare(allocated(uid, aGPU("gpu0"))); r.Devices[0].Edits.Nodes[0].Minor != minor {
			t.Errorf("minor %d, want %d", r.Devices[0].Edits.Nodes[0].Minor, minor)
		}
		s.unprepare(uid)
	}
}

// TestCDINamesAreNotReused. Seen: a container runtime that caches specs gave a container what a name had meant for an earlier claim.
func TestCDINamesAreNotReused(t *testing.T) {
	s := newSite(t)
	means := map[string]string{}
	for round := range 4 {
		s.setMachine(machine{gpu("gpu0", int64(round%2)), ssd("ssd0")})
		uid := fmt.Sprintf("u%d", round)
		r := s.prepare(ofClaim(allocated(uid, aGPU("gpu0"), aDisk("ssd0")), []string{atScratch, atData}[round/2], "ssd0"))
		for _, d := range r.Devices {
			edits, err := json.Marshal(d.Edits)
			check.Must(t, err)
			if was, ok := means[d.CDIDevice]; ok && was != string(edits) {
				t.Errorf("%s meant %s and now %s", d.CDIDevice, was, edits)
			}
			means[d.CDIDevice] = string(edits)
		}
		s.unprepare(uid)
	}
}

// TestTyposAreRefused. Seen: a misspelt field of a configuration was ignored, and the pod ran without what it had asked for; while a
// strict reader of stored state made a downgrade impossible, for which see TestChecksumOutlivesNewFields.
func TestTyposAreRefused(t *testing.T) {
	s := newSite(t)
	_, err := s.ask(ofClaim(allocated("u1", aDisk("ssd0")), strings.Replace(atScratch, "mountPath", "mountpath", 1)))
	if refused, ok := errors.AsType[*claim.RefusedError](err); !ok || !strings.Contains(refused.Error(), "mountpath") {
		t.Errorf("error %v, want a refusal that names the field", err)
	}
	s.records()
}

// TestUnknownStepIsKept: after a downgrade a record may have a step that this release cannot undo. The claim keeps its devices and says
// what to do; nothing is taken for undone.
func TestUnknownStepIsKept(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	r := s.load("u1")
	later := record.Step{Step: step.Step{Kind: "gpu.later", Target: "gpu0", Params: json.RawMessage("{}")}}
	r.Phase, r.Steps = record.Intended, append([]record.Step{later}, r.Steps...)
	for i := range r.Steps {
		r.Steps[i].State = step.Intended
	}
	check.Must(t, s.Store.Create(r))
	for i := range r.Steps {
		check.Must(t, s.Store.Advance(r, record.Change{Step: i, State: step.Done}))
	}
	check.Must(t, s.Store.Advance(r, record.Change{Phase: record.Prepared}))
	s = s.restart()
	s.reported()
	_, err := s.Unprepare(t.Context(), "u1", s.now())
	check.WantErr(t, err, nil, "gpu.later", "upgrade")
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	s.kinds["gpu.later"] = step.Kind{Undo: func(context.Context, json.RawMessage) error { return nil }}
	s.unprepare("u1")
	s.records()
}

// TestStuckPrepareStarvesNobody. Seen: one device that did not answer held a lock of the whole node, and every pod on it waited for
// minutes.
func TestStuckPrepareStarvesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.guard("ssd0") // which never opens
		before := time.Now()
		stuck := s.asking(allocated("stuck", aDisk("ssd0")))
		synctest.Wait()
		for i := range 10 {
			uid := fmt.Sprintf("u%d", i)
			s.prepare(allocated(uid, aGPU("gpu1"), asAdmin(aDisk("ssd0")), aDisk("ssd1")))
			s.unprepare(uid)
		}
		s.collection.pass(t.Context(), nil)
		if waited := time.Since(before); waited > 0 {
			t.Errorf("the others waited for %s", waited)
		}
		s.neighbour()
		s.Stop()
		if got := receive(t, stuck); got.err == nil {
			t.Error("prepared")
		}
	})
}

// TestTwoVersionsServe. Seen: a rolling update in which the old plugin's sockets or locks kept the new one out, or both wrote one state.
// See TestNeighboursServe and its neighbours, and for sockets the plugin's own tests.
func TestTwoVersionsServe(t *testing.T) {
	older := newSite(t)
	newer := older.neighbour()
	for i := range 5 {
		uid := fmt.Sprintf("u%d", i)
		one, other := older, newer
		if i%2 == 1 {
			one, other = newer, older
		}
		one.prepare(allocated(uid, aGPU("gpu0"), aDisk("ssd0")))
		if _, err := other.ask(allocated("x", aGPU("gpu0"))); !isInUse(err) {
			t.Errorf("error %v, want that the device is in use", err)
		}
		other.unprepare(uid)
	}
	older.records()
}

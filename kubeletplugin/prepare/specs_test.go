// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// publish writes the specs of all devices, as the plugin does before it publishes them.
func (s *site) publish() {
	s.t.Helper()
	for _, d := range s.seen().All() {
		check.Must(s.t, s.Specs.Ensure(standing(s.t, d)))
		check.Must(s.t, s.Specs.Ensure(shown(s.t, d)))
	}
}

func shown(t *testing.T, d device.Device) cdi.Spec {
	t.Helper()
	spec, err := cdi.Shown(string(d.Kind), d.Name)
	check.Must(t, err)
	return spec
}

func standing(t *testing.T, d device.Device) cdi.Spec {
	t.Helper()
	spec, err := names().Common(d.Edits)
	check.Must(t, err)
	return spec
}

// specFiles wants the CDI directory to hold these files and no others.
func (s *site) specFiles(want ...string) {
	s.t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, s.entries(s.cdiDir())); diff != "" {
		s.t.Errorf("CDI directory (-want +got):\n%s", diff)
	}
}

// TestSweep removes what neither a device nor a record needs, and touches nothing of others.
func TestSweep(t *testing.T) {
	s := newSite(t)
	s.publish()
	gpu0, gpu1 := standing(t, gpu("gpu0", 0)).File, standing(t, gpu("gpu1", 1)).File
	shown0, shown1 := shown(t, gpu("gpu0", 0)).File, shown(t, gpu("gpu1", 1)).File
	kept := []string{
		standing(t, ssd("ssd0")).File, standing(t, ssd("ssd1")).File, shown(t, ssd("ssd0")).File, shown(t, ssd("ssd1")).File,
	}

	s.prepare(allocated("u1", aGPU("gpu0"), asAdmin(aGPU("gpu1"))))
	strangers := []string{"vendor.example.com-gpu.json", ".tmp-vendor.example.com-gpu.json", "fettle.dev-notes.txt"}
	for _, name := range append(strangers, "fettle.dev-common-xold.json", "fettle.dev-claim-gone.json", "fettle-shown-gpu-gone.json") {
		check.Must(t, os.WriteFile(filepath.Join(s.cdiDir(), name), []byte("{}"), 0o600))
	}
	kept = append(kept, strangers...)
	own := filepath.Base(s.ownSpecPath("u1"))

	check.Must(t, s.SweepSpecs(t.Context()))
	s.specFiles(append(kept, gpu0, gpu1, shown0, shown1, own)...)

	// Somebody works on a claim that has no record yet, or no more.
	const busy = "fettle.dev-claim-busy.json"
	check.Must(t, os.WriteFile(filepath.Join(s.cdiDir(), busy), []byte("{}"), 0o600))
	hold, err := s.Store.LockClaim(t.Context(), "busy")
	check.Must(t, err)
	check.Must(t, s.SweepSpecs(t.Context()))
	s.specFiles(append(kept, gpu0, gpu1, shown0, shown1, own, busy)...)
	hold.Release()

	// Both GPUs leave. What the claim was promised stays until the end of the claim.
	s.setMachine(machine{ssd("ssd0"), ssd("ssd1")})
	check.Must(t, s.SweepSpecs(t.Context()))
	s.specFiles(append(kept, gpu0, shown0, shown1, own)...)
	s.unprepare("u1")
	check.Must(t, s.SweepSpecs(t.Context()))
	s.specFiles(kept...)
}

// TestSweepBeforeTheFirstLook: without a look at the machine every file may be a device's.
func TestSweepBeforeTheFirstLook(t *testing.T) {
	s := newSite(t)
	s.publish()
	s.setMachine(nil)
	check.Must(t, s.SweepSpecs(t.Context()))
	s.tidy()
	if got := len(s.entries(s.cdiDir())); got != 8 {
		t.Errorf("%d files, want 8", got)
	}
}

// TestSweepKeepsWhatIsInDoubt: a claim whose record was set aside may have a running pod, whose containers restart.
func TestSweepKeepsWhatIsInDoubt(t *testing.T) {
	s := newSite(t)
	s.prepare(ofClaim(allocated("u1", aDisk("ssd0")), atScratch))
	s.damage("u1")
	s = s.restart()
	s.tidy()
	if !there(s.ownSpecPath("u1")) {
		t.Error("the claim's own spec is gone")
	}
}

// TestSweepKeepsSharedFilesInDoubt: nobody knows which shared files a claim uses whose record was set aside.
func TestSweepKeepsSharedFilesInDoubt(t *testing.T) {
	s := newSite(t)
	all := s.seen()
	s.publish()
	s.prepare(allocated("u1", aGPU("gpu0")))
	s.damage("u1")
	s = s.restart()
	s.tidy()
	s.reasons()
	file := standing(t, gpu("gpu0", 0)).File
	s.setMachine(machine{})
	err := s.SweepSpecs(t.Context())
	check.WantErr(t, err, nil, "claims u1", "set aside", "delete their pods")
	if !there(filepath.Join(s.cdiDir(), file)) {
		t.Error("a shared file is gone that a running container may have")
	}
	s.setMachine(all)
	s.unprepare("u1")
	s.setMachine(machine{})
	check.Must(t, s.SweepSpecs(t.Context()))
	if there(filepath.Join(s.cdiDir(), file)) {
		t.Error("the file stays although no claim is in doubt any more")
	}
}

// TestSweepDuringPrepare: a file that looks like a leftover a moment before its claim's record is written is there when kubelet is told
// of it, whoever comes first.
func TestSweepDuringPrepare(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.publish()
		g := s.guard("ssd0")
		asked := s.asking(ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
		s.at(g, "apply")
		s.setMachine(machine{ssd("ssd0")})
		check.Must(t, s.neighbour().SweepSpecs(t.Context()))
		g.open()
		got := receive(t, asked)
		check.Must(t, got.err)
		s.isWhole(got.record)
		check.Must(t, s.SweepSpecs(t.Context()))
		s.isWhole(got.record)
	})
}

// TestWipedDirectory: kubelet never asks again for a prepared claim, so what was wiped under it comes back without being asked for.
func TestWipedDirectory(t *testing.T) {
	for name, wipe := range map[string]func(s *site){
		"the files": func(s *site) {
			for _, file := range s.entries(s.cdiDir()) {
				check.Must(s.t, os.Remove(filepath.Join(s.cdiDir(), file)))
			}
		},
		"the directory":   func(s *site) { check.Must(s.t, os.RemoveAll(s.cdiDir())) },
		"the own file":    func(s *site) { check.Must(s.t, os.Remove(s.ownSpecPath("u1"))) },
		"the truth of it": func(s *site) { check.Must(s.t, os.Truncate(s.ownSpecPath("u1"), 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			r := s.prepare(ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
			expected := s.tidy()
			s.reported()
			if s.specs.anyMissing(expected) {
				t.Error("something is missing already")
			}
			wipe(s)
			if name != "the truth of it" && !s.specs.anyMissing(expected) {
				t.Error("nobody notices")
			}
			again := s.tidy()
			s.isWhole(r)
			if diff := cmp.Diff(expected, again); diff != "" {
				t.Errorf("expected files (-before +after):\n%s", diff)
			}
			if name != "the truth of it" {
				s.reported("SpecRestored u1")
			}
			s.tidy()
			s.reported()
		})
	}
}

// TestRunRestoresWithinSeconds is the same without a test that says when to look.
func TestRunRestoresWithinSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		r := s.prepare(allocated("u1", aGPU("gpu0")))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.Run(ctx, time.Hour, nil)
			close(ended)
		}()
		synctest.Wait()
		check.Must(t, os.RemoveAll(s.cdiDir()))
		const seconds = 10 * time.Second
		time.Sleep(seconds)
		synctest.Wait()
		s.isWhole(r)
		s.reported("SpecRestored u1")
		s.unprepare("u1")
		s.setMachine(machine{})
		check.Must(t, os.RemoveAll(s.cdiDir()))
		time.Sleep(seconds)
		synctest.Wait()
		s.reported()
		cancel()
		receive(t, ended)
	})
}

// TestRunGoesRound: what is left halfway while the process runs is put in order at the interval, and claims are collected.
func TestRunGoesRound(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.kubeletHolds("u1")
		lost := allocated("u2", aGPU("gpu1"))
		s.prepare(allocated("u1", aDisk("ssd0")))
		s.prepare(lost)
		s.drop(lost)
		repair := s.failing("undo", "ssd0")
		if _, err := s.Unprepare(t.Context(), "u1", s.now()); err == nil {
			t.Fatal("given back")
		}
		repair()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.Run(ctx, time.Minute, nil)
			close(ended)
		}()
		time.Sleep(time.Duration(missesToCollect)*time.Minute + time.Second)
		synctest.Wait()
		s.records()
		cancel()
		receive(t, ended)
	})
}

// TestUnrestorable: what cannot be brought back is said once a round, not at every look.
func TestUnrestorable(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	r := s.load("u1")
	r.Devices[0].CDIDevice = "fettle.dev/other=x"
	check.Must(t, s.Store.Create(r))
	expected := s.tidy()
	if len(s.reasons()) != 1 {
		t.Error("nobody was told, or more than once")
	}
	if s.specs.anyMissing(expected) {
		t.Error("the next look, a few seconds later, goes round again")
	}
}

// TestEffectLost: the round sees to steps, too, not to specs alone, and says where one cannot be brought back.
func TestEffectLost(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aDisk("ssd0")))
	s.tidy()
	s.reported()
	check.Must(t, os.Remove(s.disk("ssd0")))
	s.tidy()
	s.reported("EffectLost u1")
	s.inPhase("u1", "prepared")
}

// TestDeviceMoved: a container must not be started with numbers that are another device's by now. Until kubelet asks again, or the
// numbers are back, there is no spec to start it with.
func TestDeviceMoved(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", aGPU("gpu0"), aDisk("ssd0"))
	first := s.prepare(c)
	data := s.write("ssd0")
	s.setMachine(machine{gpu("gpu0", 1), gpu("gpu1", 0), ssd("ssd0")})
	for range 2 {
		s.tidy()
	}
	s.reported("DeviceMoved u1")
	if s.Specs.Has(first.Devices[0].CDIDevice) {
		t.Error("the old numbers can still be had")
	}
	s.heldBy("u1", aGPU("gpu0"), aDisk("ssd0"))
	if !there(data) {
		t.Error("the claim's data was taken")
	}
	if second := s.prepare(c); second.Devices[0].Edits.Nodes[0].Minor != 1 {
		t.Errorf("device %+v", second.Devices[0])
	}
	s.tidy()
	s.reported()
}

// TestMovedByAnOldScan: two plugins serve the node during an upgrade. What one of them scanned while two directories had each other's name
// takes no spec from a claim that the other prepared later.
func TestMovedByAnOldScan(t *testing.T) {
	s := newSite(t)
	now := s.seen()
	r := s.prepare(allocated("u1", aGPU("gpu0"), aDisk("ssd0")))
	s.setMachine(machine{gpu("gpu0", 1), ssd("ssd0")})
	s.found = now
	s.tidy()
	s.isWhole(r)
	s.reported()
	s.setMachine(machine{gpu("gpu0", 1), ssd("ssd0")})
	s.scanErr = errors.New("the scan takes too long")
	s.tidy()
	s.isWhole(r)
	s.reported("RecoveryFailed u1")
	s.scanErr = nil
	s.tidy()
	s.reported("DeviceMoved u1")
}

// TestMovedWhileScansAreSlow: a scan may take longer than a pass waits, as with many GPUs that NVML initialises. The specs of a claim whose
// device moved go nevertheless. Nobody waits for the scan, and a claim that is prepared meanwhile keeps its specs: the plugin that did that
// may have scanned later.
func TestMovedWhileScansAreSlow(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		moved := s.prepare(allocated("u1", aGPU("gpu0")))
		s.prepare(allocated("u2", aGPU("gpu1")))
		s.scanTakes, s.found = 5*time.Second, machine{gpu("gpu0", 2), gpu("gpu1", 3)}
		s.setMachine(machine{gpu("gpu0", 1), gpu("gpu1", 0)})
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.tidy()
		}()
		time.Sleep(2 * time.Second)
		asked := time.Now()
		again := s.prepare(allocated("u2", aGPU("gpu1")))
		if took := time.Since(asked); took > 0 {
			t.Errorf("another claim waited %s", took)
		}
		<-done
		s.reported("DeviceMoved u1")
		if s.Specs.Has(moved.Devices[0].CDIDevice) {
			t.Error("the old numbers can still be had")
		}
		s.isWhole(again)
		s.tidy()
		s.reported("DeviceMoved u2")
	})
}

// TestPreparedByAnOldScan: two directories had each other's name when the machine was scanned, and have their own again when a claim gets
// one of them. Its record says where the directory is then.
func TestPreparedByAnOldScan(t *testing.T) {
	s := newSite(t)
	at := func(inode string) machine {
		d := ssd("ssd0")
		d.Place = container.Place{Directory: inode}
		return machine{gpu("gpu0", 0), d}
	}
	s.setMachine(at("8:1 77"))
	s.found = at("8:1 78")
	r := s.prepare(allocated("u1", aDisk("ssd0")))
	if got := r.Devices[0].Place.Directory; got != "8:1 78" {
		t.Errorf("recorded at %s", got)
	}
	s.tidy()
	s.isWhole(r)
	s.reported()
	s.unprepare("u1")
	s.found, s.scanErr = at("8:1 79"), errors.New("the scan takes too long")
	if _, err := s.ask(allocated("u2", aDisk("ssd0"))); err == nil {
		t.Error("a claim is prepared by a scan that is out of date")
	}
}

// TestDeviceMovedBack: the numbers come back before kubelet asks.
func TestDeviceMovedBack(t *testing.T) {
	s := newSite(t)
	r := s.prepare(ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
	before := s.seen()
	s.setMachine(machine{gpu("gpu0", 1), ssd("ssd0")})
	s.tidy()
	s.reported("DeviceMoved u1")
	s.setMachine(before)
	s.tidy()
	s.isWhole(r)
	s.reported("SpecRestored u1")
}

// TestPolicyComesWhileHeld: a policy that divides a GPU, or ceases to, while a claim has the whole of it moves no node: the containers can
// be restarted. A node that all GPUs share can still move.
func TestPolicyComesWhileHeld(t *testing.T) {
	s := newSite(t)
	r := s.prepare(allocated("u1", aGPU("gpu0")))
	plain := s.seen()
	divided := gpu("gpu0", 0)
	divided.Edits = container.Edits{Made: []string{"gpu0"}}
	s.setMachine(machine{divided})
	s.tidy()
	s.reported()
	s.isWhole(r)
	s.setMachine(plain)
	s.tidy()
	s.reported()
	s.isWhole(r)
	moved := r.Devices[0].Edits.Nodes[0]
	moved.Minor++
	divided.Edits.Nodes = []container.Node{moved}
	s.setMachine(machine{divided})
	s.tidy()
	s.reported("DeviceMoved u1")
}

// TestCommonNodeComesAndGoes: a node that all devices of a driver have in common, such as /dev/nvidia-modeset, is made when a program first
// needs it. The device is the same with and without it: containers can be restarted, and kubelet gets the same answer.
func TestCommonNodeComesAndGoes(t *testing.T) {
	for _, name := range []string{"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl", "kfd"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			without, with := gpu("gpu0", 0), gpu("gpu0", 0)
			with.Edits.Nodes = append(with.Edits.Nodes, container.Node{Path: "/dev/" + name, Major: 195, Minor: 254, Permissions: "rw"})
			for i, change := range [][2]device.Device{{without, with}, {with, without}} {
				c := allocated([]string{"u0", "u1"}[i], aGPU("gpu0"))
				s.setMachine(machine{change[0]})
				first := s.prepare(c)
				s.setMachine(machine{change[1]})
				s.tidy()
				s.reported()
				s.isWhole(first)
				if diff := cmp.Diff(first, s.prepare(c), sameRecord()); diff != "" {
					t.Errorf("kubelet asks again (-first +second):\n%s", diff)
				}
				s.unprepare(first.UID)
			}
			moved := with
			moved.Edits = container.Edits{Nodes: slices.Clone(with.Edits.Nodes)}
			moved.Edits.Nodes[1].Major++
			s.setMachine(machine{with})
			s.prepare(allocated("u2", aGPU("gpu0")))
			s.setMachine(machine{moved})
			s.tidy()
			s.reported("DeviceMoved u2")
		})
	}
}

// TestAdminRegionDoesNotMove: a claim with admin access to a region gets no node of it, so none can move. What else the claim has stays
// usable.
func TestAdminRegionDoesNotMove(t *testing.T) {
	s := newSite(t)
	region := gpu("region0", 3)
	region.Kind = device.KindFPGA
	s.setMachine(machine{gpu("gpu0", 0), region})
	c := allocated("u1", aGPU("gpu0"), asAdmin(result("region0", device.KindFPGA, "region0")))
	r := s.prepare(c)
	s.tidy()
	s.reported()
	s.isWhole(r)
	check.Must(t, os.RemoveAll(s.cdiDir()))
	s.tidy()
	s.reported("SpecRestored u1")
	s.isWhole(r)
}

// TestNodeIsAnotherDevice: two serial adapters change their names and numbers with each other, as when both are plugged in again. The node
// of a claim has the path and the numbers of before, and is another device.
func TestNodeIsAnotherDevice(t *testing.T) {
	s := newSite(t)
	tty := func(place string) machine {
		d := hostDevice("tty0", "", 188, 0)
		d.Place = container.Place{Device: place}
		return machine{d}
	}
	c, look := allocated("u1", aDisk("tty0")), allocated("u2", asAdmin(aDisk("tty0")))
	s.setMachine(tty("")) // as a version before, which does not know it
	s.prepare(c)
	s.setMachine(tty("usb1/1-1/tty/ttyUSB0"))
	s.tidy()
	s.reported()
	s.prepare(c)
	s.unprepare("u1")
	r := s.prepare(c)
	s.prepare(look)
	s.setMachine(tty("usb1/1-2/tty/ttyUSB0"))
	s.tidy()
	s.reported("DeviceMoved u1", "DeviceMoved u2")
	if s.Specs.Has(r.Devices[0].CDIDevice) {
		t.Error("a container that restarts gets the other device")
	}
	_, err := s.ask(c)
	check.WantErr(t, err, nil, "usb1/1-1/tty/ttyUSB0", "usb1/1-2/tty/ttyUSB0")
	if Reason(err) != "DeviceMoved" {
		t.Errorf("reason %q", Reason(err))
	}
	s.prepare(look) // it only looks, and sees what is there
	s.tidy()
	s.reported()
	s.setMachine(tty("usb1/1-1/tty/ttyUSB0"))
	s.isWhole(s.prepare(c))
}

// TestNothingIsRestoredTwice: a file that came between two looks was not gone, and what somebody else works on is not restored.
func TestNothingIsRestoredTwice(t *testing.T) {
	s := newSite(t)
	r := s.prepare(ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0"))
	none := map[string]bool{} // as the directory was a moment before
	s.specs.checkPrepared(t.Context(), t.Context(), r, none, map[string]bool{})
	s.reported()
	check.Must(t, os.RemoveAll(s.cdiDir()))
	hold, err := s.Store.LockClaim(t.Context(), "u1")
	check.Must(t, err)
	expected := s.tidy()
	hold.Release()
	s.reported()
	if !s.specs.anyMissing(expected) {
		t.Error("the next look, a few seconds later, does not notice")
	}
	s.tidy()
	s.reported("SpecRestored u1")
}

// TestReleasingIsNotRestored: a claim that is given back meanwhile gets nothing back.
func TestReleasingIsNotRestored(t *testing.T) {
	s := newSite(t)
	seen := s.prepare(ofClaim(allocated("u1", aDisk("ssd0")), atScratch))
	s.failing("undo", "ssd0")
	if _, err := s.Unprepare(t.Context(), "u1", s.now()); err == nil {
		t.Fatal("given back")
	}
	seen.Phase = record.Prepared
	s.specs.checkPrepared(t.Context(), t.Context(), seen, map[string]bool{}, map[string]bool{})
	s.reported()
	if there(s.ownSpecPath("u1")) {
		t.Error("the spec is there again")
	}
}

// TestWithdrawIsNotLate: a claim that kubelet asked for between the look that saw its device move and what follows from that has its
// specs.
func TestWithdrawIsNotLate(t *testing.T) {
	s := newSite(t)
	c := ofClaim(allocated("u1", aGPU("gpu0"), aDisk("ssd0")), atScratch, "ssd0")
	old := s.prepare(c)
	s.setMachine(machine{gpu("gpu0", 1), ssd("ssd0")})
	r := s.prepare(c)
	there, err := s.Specs.Files()
	check.Must(t, err)
	s.specs.checkPrepared(t.Context(), t.Context(), old, there, map[string]bool{})
	s.isWhole(r)
	s.reported()
}

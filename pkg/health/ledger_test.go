// SPDX-License-Identifier: Apache-2.0

package health

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
)

// TestEvents: what the table calls fatal or degraded counts, what it ignores is only seen.
func TestEvents(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Happened(xid("a", "13"), xid("b", "94"), xid("c", "79"), xid("d", "94")))
	m.time = m.time.Add(time.Minute)
	check.Must(t, l.Happened(xid("d", "64"), xid("c", "119")))
	m.is(l, "a", Healthy, "")
	m.is(l, "b", Worn, "Xid94")
	m.is(l, "c", Unhealthy, "Xid79") // the older of two equals: a taint does not change with every further fault
	m.is(l, "d", Unhealthy, "Xid64")
	want := map[string]int{
		"xid/13/ignored": 1, "xid/94/degraded": 2, "xid/79/fatal": 1, "xid/64/fatal": 1, "xid/119/fatal": 1,
	}
	if diff := cmp.Diff(want, m.seen); diff != "" {
		t.Errorf("seen (-want +got):\n%s", diff)
	}
	since := time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)
	if s := l.Statuses()["c"]; !strings.Contains(s.Message, "fell off the bus") || !s.Since.Equal(since) {
		t.Errorf("status %+v", s)
	}
}

// TestCounters: only an increase since the baseline counts, and a counter that goes back is a reset.
func TestCounters(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	steps := []struct {
		name   string
		values map[string]uint64
		state  State
		reason string
	}{
		{"first sight is no news", map[string]uint64{"fatal.DLP": 5, "nonfatal.CmpltTO": 1}, Healthy, ""},
		{"the same", map[string]uint64{"fatal.DLP": 5, "nonfatal.CmpltTO": 1}, Healthy, ""},
		{"a degraded one grows", map[string]uint64{"fatal.DLP": 5, "nonfatal.CmpltTO": 2}, Worn, "AerNonfatalCmpltTO"},
		{"an ignored one grows", map[string]uint64{"fatal.DLP": 5, "nonfatal.CmpltTO": 2, "correctable.RxErr": 9}, Worn, "AerNonfatalCmpltTO"},
		{"a fatal one grows", map[string]uint64{"fatal.DLP": 6, "nonfatal.CmpltTO": 2}, Unhealthy, "AerFatalDLP"},
		{"unreadable is no zero", nil, Unhealthy, "AerFatalDLP"},
		{"one is missing", map[string]uint64{"nonfatal.CmpltTO": 2}, Unhealthy, "AerFatalDLP"},
		{"gone back", map[string]uint64{"fatal.DLP": 0, "nonfatal.CmpltTO": 0}, Healthy, ""},
		{"grows from the new baseline", map[string]uint64{"fatal.DLP": 1, "nonfatal.CmpltTO": 0}, Unhealthy, "AerFatalDLP"},
		{"gone back while another grew", map[string]uint64{"fatal.DLP": 0, "nonfatal.CmpltTO": 7}, Healthy, ""},
		{"one that is new", map[string]uint64{"fatal.DLP": 0, "nonfatal.CmpltTO": 7, "fatal.TLP": 3}, Healthy, ""},
		{"and grows", map[string]uint64{"fatal.DLP": 0, "nonfatal.CmpltTO": 7, "fatal.TLP": 4}, Unhealthy, "AerFatalTLP"},
	}
	for _, step := range steps {
		m.time = m.time.Add(10 * time.Second)
		check.Must(t, l.Report(aer("a", step.values)))
		t.Log(step.name)
		m.is(l, "a", step.state, step.reason)
		l = m.open() // nothing is only in memory
		m.is(l, "a", step.state, step.reason)
	}
}

// TestIncreaseIsNotLost: what grows within the minute in which nothing is written down is counted after it.
func TestIncreaseIsNotLost(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	for _, value := range []uint64{10, 11, 12, 15} {
		check.Must(t, l.Report(aer("a", map[string]uint64{"fatal.DLP": value})))
		m.time = m.time.Add(20 * time.Second)
	}
	check.Must(t, l.Report(aer("a", map[string]uint64{"fatal.DLP": 15})))
	if f := l.content.Devices["a"].find(SourceAER, "fatal.DLP"); f == nil || f.Count != 5 {
		t.Errorf("fault %+v, want a count of 5", f)
	}
}

// TestEventStorm writes once a minute, however many events come.
func TestEventStorm(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	writes := 0
	var last os.FileInfo
	for range 300 {
		check.Must(t, l.Happened(xid("a", "79")))
		now, err := os.Stat(m.file())
		check.Must(t, err)
		if last == nil || !os.SameFile(last, now) || !last.ModTime().Equal(now.ModTime()) {
			writes++
		}
		last = now
		m.time = m.time.Add(time.Second)
	}
	if writes != 5 {
		t.Errorf("%d writes in 5 minutes", writes)
	}
}

// TestNVMLRecovers: a GPU is healthy again when its driver stops asking for a recovery, or its counters begin anew.
func TestNVMLRecovers(t *testing.T) {
	two, three, zero := uint64(2), uint64(3), uint64(0)
	yes, no := true, false
	well := nvml.DeviceState{RecoveryAction: nvml.RecoveryNone, UncorrectedECC: &two, RemapFailure: &no, RemapPending: &no}
	reset := well
	reset.RecoveryAction = "gpu-reset"
	ecc := well
	ecc.UncorrectedECC = &three
	reloaded := well
	reloaded.UncorrectedECC = &zero
	failure := reloaded
	failure.RemapFailure = &yes
	pending := reloaded
	pending.RemapPending = &yes
	novel := reloaded
	novel.RecoveryAction = "dance"
	steps := []struct {
		name   string
		event  string
		state  nvml.DeviceState
		want   State
		reason string
	}{
		{"well", "", well, Healthy, ""},
		{"an error, and the driver has not decided yet", "95", well, Unhealthy, "Xid95"},
		{"it asks for a reset", "", reset, Unhealthy, "Xid95"},
		{"it was reset", "", well, Healthy, ""},
		{"a contained error", "94", ecc, Worn, "Xid94"},
		{"nothing changes", "", ecc, Worn, "Xid94"},
		{"nothing can be read", "", nvml.DeviceState{}, Worn, "Xid94"},
		{"the counters begin anew", "", reloaded, Healthy, ""},
		{"remapping failed", "", failure, Unhealthy, "NvmlRemapFailure"},
		{"the source takes it back", "", reloaded, Healthy, ""},
		{"remapping is pending", "", pending, Healthy, ""},
		{"lost", "79", nvml.DeviceState{Lost: true}, Unhealthy, "Xid79"},
		{"found", "", reloaded, Unhealthy, "Xid79"},
		{"wants something new", "", novel, Unhealthy, "Xid79"},
		{"wants nothing", "", reloaded, Unhealthy, "Xid79"},
	}
	m := newMachine(t)
	l := m.open()
	for _, step := range steps {
		m.time = m.time.Add(10 * time.Second)
		if step.event != "" {
			check.Must(t, l.Happened(xid("a", step.event)))
		}
		check.Must(t, l.Report(NVML("a", step.state)))
		t.Log(step.name)
		m.is(l, "a", step.want, step.reason)
	}
}

// TestBoot: a reboot repairs what can be repaired, and no more.
func TestBoot(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Report(aer("a", map[string]uint64{"fatal.DLP": 1}), Report{Device: "b", Source: SourceNVML, Readings: []Reading{
		{Code: "remap-failure", Kind: Level, Value: 1},
	}}))
	check.Must(t, l.Happened(xid("a", "79")))
	check.Must(t, l.Quarantine(device.KindFPGA, "c", Cause{Reason: "FPGAProgramFailed", Message: "programming failed"}))
	m.boot = "boot-2"
	l = m.open()
	m.is(l, "a", Healthy, "")
	m.is(l, "b", Unhealthy, "NvmlRemapFailure")
	m.is(l, "c", Quarantined, "FPGAProgramFailed")
	check.Must(t, l.Report(aer("a", map[string]uint64{"fatal.DLP": 3}))) // counted since the boot, before anyone looked
	m.is(l, "a", Healthy, "")
	check.Must(t, l.Report(aer("a", map[string]uint64{"fatal.DLP": 4})))
	m.is(l, "a", Unhealthy, "AerFatalDLP")
}

// TestInstance: a driver that is bound anew begins anew.
func TestInstance(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Instances(map[string]string{"a": "17"}))
	check.Must(t, l.Happened(xid("a", "79")))
	check.Must(t, l.Instances(map[string]string{"a": "17"}))
	m.is(l, "a", Unhealthy, "Xid79")
	check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "UndoFailed", Message: "an undo failed"}))
	check.Must(t, l.Instances(map[string]string{"a": "18"}))
	m.is(l, "a", Quarantined, "UndoFailed")
	check.Must(t, l.Clear("a", "UndoFailed", ""))
	m.is(l, "a", Healthy, "")
}

// TestGone: a device that left is bad news for its claim, and for nobody else.
func TestGone(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Present(there("a", "b", "c", "d"), heldBy("a", "c")))
	check.Must(t, l.Happened(xid("b", "79"), xid("d", "79")))
	if got := l.Statuses(); len(got) != 2 {
		t.Errorf("statuses %v", got)
	}
	l = m.open()
	check.Must(t, l.Present(there("c"), heldBy("a", "c")))
	m.is(l, "a", Unhealthy, "DiscoveryGone")
	if s := l.Statuses()["a"]; !s.Gone || s.Kind != device.KindGPU {
		t.Errorf("status %+v", s)
	}
	m.is(l, "b", Healthy, "") // nobody has it, nobody can get it
	check.Must(t, l.Present(there("a", "b", "c"), heldBy("a", "c")))
	m.is(l, "a", Healthy, "")
	m.is(l, "b", Unhealthy, "Xid79") // a look that missed it is no cure
	check.Must(t, l.Present(there("b", "c"), heldBy()))
	m.is(l, "a", Healthy, "") // its claim ended
	m.time = m.time.Add(8 * 24 * time.Hour)
	check.Must(t, l.Present(there("b", "c"), heldBy()))
	if got := sorted(l.content.Devices); !cmp.Equal(got, []string{"b", "c"}) {
		t.Errorf("the ledger remembers %v", got)
	}
}

// TestExpire forgets what the table gives a time, counted from the last time it was seen.
func TestExpire(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Happened(xid("a", "1234"), xid("b", "79")))
	m.time = m.time.Add(50 * time.Minute)
	check.Must(t, l.Happened(xid("a", "1234")))
	m.time = m.time.Add(50 * time.Minute)
	check.Must(t, l.Expire())
	m.is(l, "a", Worn, "Xid1234")
	m.time = m.time.Add(10 * time.Minute)
	check.Must(t, l.Expire())
	m.is(l, "a", Healthy, "")
	m.time = m.time.Add(1000 * time.Hour)
	check.Must(t, l.Expire())
	m.is(l, "b", Unhealthy, "Xid79")
}

// TestExpireAfterTheClockWasSetBack: what was seen at a time that is in the future now counts from now on.
func TestExpireAfterTheClockWasSetBack(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Happened(xid("a", "999")))
	m.time = m.time.Add(-30 * 24 * time.Hour)
	check.Must(t, l.Expire())
	m.is(l, "a", Worn, "Xid999")
	m.time = m.time.Add(time.Hour)
	check.Must(t, l.Expire())
	m.is(l, "a", Healthy, "")
}

// TestQuarantine stays until the reason is taken back, and is worse than any fault.
func TestQuarantine(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Happened(xid("a", "79")))
	check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "ProgramFailed", Message: "programming failed"}))
	m.time = m.time.Add(time.Minute)
	check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "ProgramFailed", Message: "programming failed again"}))
	m.is(l, "a", Quarantined, "ProgramFailed")
	check.Must(t, l.Clear("a", "ProgramFailed", ""))
	m.is(l, "a", Quarantined, "UndoFailed")
	check.Must(t, l.Clear("a", "ProgramFailed", ""))
	check.Must(t, l.Clear("nobody", "ProgramFailed", ""))
	l = m.open()
	m.is(l, "a", Quarantined, "UndoFailed")
	check.Must(t, l.Clear("a", "UndoFailed", ""))
	m.is(l, "a", Unhealthy, "Xid79")
	check.Must(t, l.Quarantine(device.KindGPU, "b", Cause{Reason: "gpu.mig: undo/failed", Message: "a reason that is no label value"}))
	m.is(l, "b", Quarantined, "GpuMigUndoFailed")
	check.Must(t, l.Clear("b", "gpu.mig: undo/failed", ""))
	m.is(l, "b", Healthy, "")
}

func last(_ []string, err error) error { return err }

// TestRecover carries a request out once, whoever sees it again.
func TestRecover(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	spoil := func() {
		check.Must(t, l.Happened(xid("a", "79"), xid("b", "79"), xid("c", "79")))
		check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	}
	recovered := func(request string, want ...string) {
		t.Helper()
		forgiven, err := l.Recover(request)
		check.Must(t, err)
		if diff := cmp.Diff(want, forgiven); diff != "" {
			t.Errorf("forgiven by name for %q (-want +got):\n%s", request, diff)
		}
	}
	spoil()
	recovered("b, nobody, a", "a", "b")
	m.is(l, "a", Healthy, "")
	m.is(l, "b", Healthy, "")
	m.is(l, "c", Unhealthy, "Xid79")
	spoil()
	l = m.open()
	recovered("b, nobody, a")
	m.is(l, "a", Quarantined, "UndoFailed")
	recovered("")
	recovered("*")
	if got := l.Statuses(); len(got) > 0 {
		t.Errorf("statuses %v", got)
	}
}

// TestOverride: an admin's rule counts at once, also for what was seen before.
func TestOverride(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Happened(xid("a", "79"), xid("b", "94")))
	check.Must(t, l.Report(aer("c", map[string]uint64{"correctable.RxErr": 5})))
	l = m.open(Rule{Source: SourceXid, Code: "79", Severity: Ignored}, Rule{Source: SourceXid, Code: "94", Severity: Fatal},
		Rule{Source: SourceAER, Code: "correctable.*", Severity: Degraded})
	m.is(l, "a", Healthy, "")
	m.is(l, "b", Unhealthy, "Xid94")
	check.Must(t, l.Report(aer("c", map[string]uint64{"correctable.RxErr": 50}))) // not watched before: a baseline
	m.is(l, "c", Healthy, "")
	check.Must(t, l.Report(aer("c", map[string]uint64{"correctable.RxErr": 51})))
	m.is(l, "c", Worn, "AerCorrectableRxErr")
}

func TestDisabledSource(t *testing.T) {
	m := newMachine(t)
	check.Must(t, m.open().Happened(xid("a", "79")))
	l := Open(Options{Dir: m.dir, BootID: m.boot, Table: DefaultTable(), Disabled: []string{SourceXid}, Now: time.Now})
	m.is(l, "a", Healthy, "")
}

func TestChanged(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	signalled := func() bool {
		select {
		case <-l.Changed():
			return true
		default:
			return false
		}
	}
	signalled() // opening may
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"an ignored event", func() error { return l.Happened(xid("a", "13")) }, false},
		{"a fatal event", func() error { return l.Happened(xid("a", "79")) }, true},
		{"the same", func() error { return l.Happened(xid("a", "79")) }, false},
		{"taints", func() error { return l.SetTaintsKept(true) }, true},
		{"the same taints", func() error { return l.SetTaintsKept(true) }, false},
		{"a recovery", func() error { return last(l.Recover("a")) }, true},
	} {
		check.Must(t, step.do())
		if got := signalled(); got != step.want {
			t.Errorf("%s: signalled %v, want %v", step.name, got, step.want)
		}
	}
	if !m.open().TaintsKept() {
		t.Error("what the API server does with taints was forgotten")
	}
}

// TestManyFaults: a source gone mad does not fill the disk.
func TestManyFaults(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	for code := range 1000 {
		check.Must(t, l.Happened(Event{
			Device: "a", Source: SourceXid, Code: strconv.Itoa(1000+code) + strings.Repeat("x", code), Message: strings.Repeat("é", 5000),
		}))
	}
	info, err := os.Stat(m.file())
	check.Must(t, err)
	if info.Size() > 128<<10 {
		t.Errorf("the file has %d bytes", info.Size())
	}
}

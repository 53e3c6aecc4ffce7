// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/test/check"
)

// filled is a ledger with something of everything.
func filled(m *machine) *Ledger {
	m.Helper()
	l := m.open()
	check.Must(m, l.Present(map[string]device.Kind{"nvidia-0000-1b-00-0": device.KindGPU, "left": device.KindGPU}, heldBy()))
	check.Must(m, l.Instances(map[string]string{"nvidia-0000-1b-00-0": "4711"}))
	check.Must(m, l.Report(aer("nvidia-0000-1b-00-0", map[string]uint64{"fatal.DLP": 1, "nonfatal.CmpltTO": 2})))
	check.Must(m, l.Happened(xid("nvidia-0000-1b-00-0", "79")))
	lost := []Reading{{Code: "lost", Kind: Level, Value: 1}}
	check.Must(m, l.Report(Report{Device: "nvidia-0000-1b-00-0", Source: SourceNVML, Readings: lost}))
	cause := Cause{Reason: "FPGAProgramFailed", Message: "programming failed: EIO"}
	check.Must(m, l.Quarantine(device.KindFPGA, "dfl-0000-3b-00-0-region-0", cause))
	check.Must(m, l.Present(map[string]device.Kind{"nvidia-0000-1b-00-0": device.KindGPU}, heldBy()))
	check.Must(m, last(l.Recover("gpu0")))
	check.Must(m, l.SetTaintsKept(true))
	return l
}

// TestFormat1 holds the file of version 1, which every later release must read.
func TestFormat1(t *testing.T) {
	m := newMachine(t)
	want := filled(m).Statuses()
	data, err := os.ReadFile(m.file())
	check.Must(t, err)
	check.Golden(t, "testdata/health-1.json", string(data))

	later := newMachine(t)
	later.dir = t.TempDir()
	old, err := os.ReadFile(filepath.Join("testdata", "health-1.json"))
	check.Must(t, err)
	// A release after this one may have added fields.
	old = []byte(strings.Replace(string(old), `"bootID"`, `"added": {"x": [1]}, "bootID"`, 1))
	check.Must(t, os.WriteFile(later.file(), old, 0o600))
	l := later.open()
	if diff := cmp.Diff(want, l.Statuses()); diff != "" || l.Trouble() != "" {
		t.Errorf("trouble %q (-want +got):\n%s", l.Trouble(), diff)
	}
}

// TestDamaged: a file cut at any length, or with any byte changed, is refused or makes sense.
func TestDamaged(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join("testdata", "health-1.json"))
	check.Must(t, err)
	look := func(data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		for name, e := range c.Devices {
			if s, bad := e.status(DefaultTable()); bad && s.State == "" {
				t.Errorf("device %s of %s has status %+v", name, data, s)
			}
		}
	}
	for i := range whole {
		if _, err := decode(whole[:i]); err == nil && i < len(whole)-1 {
			t.Errorf("%d of %d bytes are enough", i, len(whole))
		}
		for _, mask := range []byte{0x01, 0x55, 0xff} {
			changed := append([]byte(nil), whole...)
			changed[i] ^= mask
			look(changed)
		}
	}
}

// TestSetAside: the ledger works on, whatever is in its place.
func TestSetAside(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "null": "null", "list": "[]", "null device": `{"version":1,"devices":{"a":null}}`, "newer": `{"version":2}`,
		"no version": `{"devices":{}}`, "no source": `{"version":1,"devices":{"a":{"faults":[{}]}}}`, "cut": `{"version":1,"bootID":"b`,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.dir = t.TempDir()
			check.Must(t, os.WriteFile(m.file(), []byte(text), 0o600))
			l := m.open()
			if aside, err := os.ReadFile(filepath.Join(m.dir, asideName)); err != nil || string(aside) != text || l.Trouble() == "" {
				t.Errorf("set aside %q (%v), trouble %q", aside, err, l.Trouble())
			}
			check.Must(t, l.Happened(xid("new", "79")))
			again := m.open()
			m.is(again, "new", Unhealthy, "Xid79")
			if again.Trouble() != "" {
				t.Errorf("trouble %q after a restart", again.Trouble())
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		m := newMachine(t)
		check.Must(t, os.MkdirAll(m.file(), 0o700))
		check.Must(t, os.MkdirAll(filepath.Join(m.dir, asideName, "full"), 0o700))
		l := m.open()
		err := l.Happened(xid("new", "79"))
		if err == nil || l.Trouble() == "" {
			t.Errorf("got %v, trouble %q", err, l.Trouble())
		}
		m.is(l, "new", Unhealthy, "Xid79")
	})
}

// TestUnreadable is said until the process ends: what was in the file is lost.
func TestUnreadable(t *testing.T) {
	m := newMachine(t)
	filled(m)
	check.Must(t, os.WriteFile(m.file(), []byte("{"), 0o600))
	l := m.open()
	for range 2 {
		if !strings.Contains(l.Trouble(), "set aside as health.json.unreadable") || len(l.Statuses()) > 0 {
			t.Errorf("trouble %q, statuses %v", l.Trouble(), l.Statuses())
		}
		check.Must(t, l.Expire())
	}
	if data, err := os.ReadFile(filepath.Join(m.dir, asideName)); err != nil || string(data) != "{" {
		t.Errorf("set aside %q, %v", data, err)
	}
}

// TestLeftover: a write that was cut off leaves nothing for good, and the files of others are not touched.
func TestLeftover(t *testing.T) {
	m := newMachine(t)
	m.dir = t.TempDir()
	for _, name := range []string{disk.TemporaryPrefix + fileName + "-12345678", disk.TemporaryPrefix + "other"} {
		check.Must(t, os.WriteFile(filepath.Join(m.dir, name), []byte("{"), 0o600))
	}
	m.open()
	left, err := filepath.Glob(filepath.Join(m.dir, disk.TemporaryPrefix+"*"))
	if err != nil || len(left) != 1 || !strings.HasSuffix(left[0], "other") {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestTwoProcesses: during a rolling update two plugins write, and neither loses what the other knows.
func TestTwoProcesses(t *testing.T) {
	m := newMachine(t)
	older, newer := m.open(), m.open()
	check.Must(t, older.Quarantine(device.KindFPGA, "a", Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	check.Must(t, newer.Happened(xid("b", "79")))
	if s, _ := newer.Check("a"); s.State != Quarantined {
		t.Errorf("the newer says %+v", s)
	}
	if s, _ := older.Check("b"); s.Reason != "Xid79" {
		t.Errorf("the older says %+v", s)
	}
	check.Must(t, newer.Clear("a", "UndoFailed", ""))
	if s, bad := older.Check("a"); bad {
		t.Errorf("the older still says %+v", s)
	}
	check.Must(t, older.Expire())
	m.is(m.open(), "a", Healthy, "")

	// One growth that both see is one.
	for _, value := range []uint64{1, 2} {
		for _, l := range []*Ledger{older, newer} {
			check.Must(t, l.Report(aer("c", map[string]uint64{"fatal.DLP": value})))
		}
	}
	if f := m.open().content.Devices["c"].find(SourceAER, "fatal.DLP"); f == nil || f.Count != 1 {
		t.Errorf("fault %+v", f)
	}
}

// TestConcurrent has many callers in two processes; each quarantine must be in the end.
func TestConcurrent(t *testing.T) {
	m := newMachine(t)
	ledgers := []*Ledger{m.open(), m.open()}
	var wg sync.WaitGroup
	for i := range 40 {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		wg.Go(func() {
			l := ledgers[i%2]
			check.Must(t, l.Quarantine(device.KindGPU, name, Cause{Reason: "UndoFailed", Message: "undoing failed"}))
			if s, _ := ledgers[1-i%2].Check(name); s.State != Quarantined {
				t.Errorf("the other process says %+v of %s", s, name)
			}
			_ = l.Statuses()
		})
	}
	wg.Wait()
	if got := len(m.open().Statuses()); got != 40 {
		t.Errorf("%d of 40", got)
	}
}

// faulty is a disk that fails at will.
type faulty struct {
	disk.OS
	err error
}

func (f *faulty) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	if f.err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: f.err}
	}
	return f.OS.OpenFile(name, flag, perm)
}

// synced is a disk that counts what was made durable.
type synced struct {
	disk.OS
	files, dirs int
}

type syncedFile struct {
	disk.File
	of *synced
}

func (d *synced) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	f, err := d.OS.OpenFile(name, flag, perm)
	return syncedFile{f, d}, err
}

func (d *synced) SyncDir(name string) error {
	d.dirs++
	return d.OS.SyncDir(name)
}

func (f syncedFile) Sync() error {
	f.of.files++
	return f.File.Sync()
}

// TestDurable: a quarantine outlives a power loss once it was said to be noted.
func TestDurable(t *testing.T) {
	m := newMachine(t)
	d := &synced{}
	l := Open(Options{FS: d, Dir: m.dir, BootID: m.boot, Table: DefaultTable(), Now: func() time.Time { return m.time }})
	d.files, d.dirs = 0, 0
	check.Must(t, l.Quarantine(device.KindGPU, "a", Cause{Reason: "UndoFailed", Message: "undoing failed"}))
	if d.files != 1 || d.dirs != 1 {
		t.Errorf("%d files and %d directories were synced, want one each", d.files, d.dirs)
	}
}

// TestDiskFull: what cannot be written is known all the same, said, and written as soon as there is space.
func TestDiskFull(t *testing.T) {
	m := newMachine(t)
	d := &faulty{}
	l := Open(Options{FS: d, Dir: m.dir, BootID: m.boot, Table: DefaultTable(), Now: func() time.Time { return m.time }})
	other := m.open()
	d.err = unix.ENOSPC
	if err := l.Quarantine(device.KindGPU, "a", Cause{Reason: "UndoFailed", Message: "undoing failed"}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	m.is(l, "a", Quarantined, "UndoFailed")
	if !strings.Contains(l.Trouble(), "in memory only") || !strings.Contains(l.Trouble(), "no space") {
		t.Errorf("trouble %q", l.Trouble())
	}
	check.Must(t, other.Happened(xid("b", "79")))
	if err := l.Expire(); err == nil {
		t.Error("written to a full disk")
	}
	m.is(l, "a", Quarantined, "UndoFailed")
	m.is(l, "b", Unhealthy, "Xid79")
	d.err = nil
	check.Must(t, l.Expire())
	if l.Trouble() != "" {
		t.Errorf("trouble %q", l.Trouble())
	}
	again := m.open()
	m.is(again, "a", Quarantined, "UndoFailed")
	m.is(again, "b", Unhealthy, "Xid79")
}

// TestLockIsHeld: another process that hangs with the lock makes no one wait for long.
func TestLockIsHeld(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	unlock, err := (&file{fs: disk.OS{}, dir: m.dir}).lock()
	check.Must(t, err)
	if err := l.Happened(xid("a", "79")); !errors.Is(err, filelock.ErrHeld) || !strings.Contains(err.Error(), m.dir) {
		t.Errorf("got %v", err)
	}
	m.is(l, "a", Unhealthy, "Xid79")
	unlock()
	check.Must(t, m.open().Happened(xid("b", "79")))
	check.Must(t, l.Expire())
	again := m.open()
	m.is(again, "a", Unhealthy, "Xid79")
	m.is(again, "b", Unhealthy, "Xid79")
}

// TestDestroy leaves nothing, and nothing comes back before something changed.
func TestDestroy(t *testing.T) {
	m := newMachine(t)
	l := filled(m)
	check.Must(t, os.WriteFile(filepath.Join(m.dir, asideName), nil, 0o600))
	check.Must(t, os.WriteFile(filepath.Join(m.dir, disk.TemporaryPrefix+fileName+"-1"), nil, 0o600))
	check.Must(t, l.Destroy())
	check.Must(t, last(l.Recover("gpu0")))
	check.Must(t, l.SetTaintsKept(true))
	if left, err := os.ReadDir(m.dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	check.Must(t, l.Happened(xid("a", "79")))
	m.is(m.open(), "a", Unhealthy, "Xid79")
	// A directory that somebody wiped is written again.
	check.Must(t, os.Remove(m.file()))
	check.Must(t, l.Expire())
	m.is(m.open(), "a", Unhealthy, "Xid79")
}

// TestServesAgain: what is known against devices is on disk again once they are looked after again.
func TestServesAgain(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Present(there("a", "b"), heldBy()), l.Happened(xid("a", "79")))
	check.Must(t, l.Destroy())
	m.is(m.open(), "a", Healthy, "")
	check.Must(t, l.Destroy())
	check.Must(t, l.Present(there("a", "b"), heldBy()))
	m.is(m.open(), "a", Unhealthy, "Xid79")
}

func FuzzDecode(f *testing.F) {
	whole, err := os.ReadFile(filepath.Join("testdata", "health-1.json"))
	check.Must(f, err)
	f.Add(whole)
	f.Add([]byte(`{"version":1,"devices":{"a":{"absent":"2026-01-01T00:00:00Z","counters":{"aer/x":1}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(c.encode())
		if err != nil {
			t.Fatalf("%s became %s: %v", data, c.encode(), err)
		}
		if diff := cmp.Diff(string(c.encode()), string(again.encode())); diff != "" {
			t.Error(diff)
		}
		table := DefaultTable()
		for _, e := range c.Devices {
			e.report(time.Now(), aer("a", map[string]uint64{"fatal.DLP": 3}), table, func(string) {})
			e.expire(time.Now(), table)
			e.status(table)
		}
	})
}

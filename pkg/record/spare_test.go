// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/fault"
)

// spareFiles are those in the store's directory.
func spareFiles(t testing.TB, s *Store) []os.FileInfo {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, claimsDir))
	must(t, err)
	var out []os.FileInfo
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), sparePrefix) {
			info, err := e.Info()
			must(t, err)
			out = append(out, info)
		}
	}
	return out
}

// come and go are a claim's life.
func come(t testing.TB, s *Store, uid string, steps int) *Record {
	t.Helper()
	r := stepping(uid, steps)
	must(t, s.Create(r))
	return r
}

func gone(t testing.TB, s *Store, r *Record) {
	t.Helper()
	advance(t, s, r, Change{Phase: Releasing})
	for i := range r.Steps {
		advance(t, s, r, Change{Step: i, State: step.Undone})
	}
	must(t, s.Release(r, Change{}))
	must(t, s.Remove(r))
}

// madeOf says whether a claim's file is one of these.
func madeOf(t testing.TB, s *Store, uid string, files []os.FileInfo) bool {
	t.Helper()
	info, err := os.Stat(path(s, uid))
	must(t, err)
	for _, f := range files {
		if os.SameFile(info, f) {
			return true
		}
	}
	return false
}

// TestSpares: the file of a claim that is gone becomes that of another, once a sync made its name as a spare certain.
func TestSpares(t *testing.T) {
	s := open(t)
	gone(t, s, come(t, s, "u1", 0))
	spare := spareFiles(t, s)
	if len(spare) != 1 {
		t.Fatalf("%d spares, want 1", len(spare))
	}
	come(t, s, "u2", 0)
	if madeOf(t, s, "u2", spare) {
		t.Error("the spare was taken before a sync made its name certain")
	}
	r := come(t, s, "u3", 0)
	if !madeOf(t, s, "u3", spare) || len(spareFiles(t, s)) != 0 {
		t.Error("the spare was not taken")
	}
	same(t, "in a spare", r, load(t, s, "u3"))
	advance(t, s, r, Change{Phase: Releasing})
	same(t, "in a spare, then changed", r, load(t, s, "u3"))
	if info, err := os.Stat(path(s, "u3")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %s (%v)", info.Mode(), err)
	}
}

// TestSpareNamedDuringASync: that sync may have come too early for it.
func TestSpareNamedDuringASync(t *testing.T) {
	s := newSpares()
	sync := func(during func()) {
		must(t, s.ripen(func() error {
			during()
			return nil
		}))
	}
	sync(func() { s.add("claims/.spare-1", 4096) })
	if got := s.take(4096); got != "" {
		t.Errorf("took %s", got)
	}
	failed := errors.New("sync failed")
	if err := s.ripen(func() error { return failed }); !errors.Is(err, failed) || s.take(4096) != "" {
		t.Errorf("error %v, want that of a sync, which makes nothing certain", err)
	}
	sync(func() {})
	if got := s.take(4096); got != "claims/.spare-1" {
		t.Errorf("took %q", got)
	}
}

// TestSparesFit: a record is written into a file of its length, and what grew is none.
func TestSparesFit(t *testing.T) {
	s := open(t)
	gone(t, s, come(t, s, "short", 0))
	must(t, s.SweepTemporary()) // as at a start: it is there, and not adopted twice
	come(t, s, "other", 0)
	long := come(t, s, "long", 40)
	if n := len(spareFiles(t, s)); n != 1 {
		t.Errorf("%d spares, want the short one left", n)
	}
	for i := range long.Steps {
		advance(t, s, long, Change{Step: i, State: step.Done})
	}
	long.length = long.valid - 1 // as if there had been no room
	must(t, s.Remove(long))
	if n := len(spareFiles(t, s)); n != 1 {
		t.Errorf("%d spares, want none of a file that grew", n)
	}
}

func TestSparesAreFew(t *testing.T) {
	s := open(t)
	var all []*Record
	for i := range maxSpares + 2 {
		all = append(all, come(t, s, "u"+string(rune('a'+i)), 0))
	}
	for _, r := range all {
		gone(t, s, r)
	}
	gone(t, s, come(t, s, "longer", 60)) // of which there is none yet
	gone(t, s, come(t, s, "too-long", 200))
	if n := len(spareFiles(t, s)); n != maxSpares+1 {
		t.Errorf("%d spares, want %d of one length and one of another", n, maxSpares)
	}
	if uids, err := s.UIDs(); err != nil || len(uids) > 0 {
		t.Errorf("records %v (%v)", uids, err)
	}
}

// TestSparesOfAnotherProcess: the next process uses them, and two that know the same ones do not take one twice.
func TestSparesOfAnotherProcess(t *testing.T) {
	s := open(t)
	gone(t, s, come(t, s, "u1", 0))
	spare := spareFiles(t, s)
	next := newStore(s.fs, s.dir)
	must(t, next.SweepTemporary())
	come(t, next, "u2", 0)
	come(t, s, "u3", 0)
	if madeOf(t, s, "u2", spare) || madeOf(t, s, "u3", spare) {
		t.Error("the spare was taken before a sync made its name certain")
	}
	come(t, next, "u4", 0)
	come(t, s, "u5", 0)
	if !madeOf(t, s, "u4", spare) || madeOf(t, s, "u5", spare) {
		t.Error("want the spare to be the file of the first that asked")
	}
	for _, uid := range []string{"u2", "u3", "u4", "u5"} {
		load(t, s, uid)
	}
}

// TestNoRoomForASpare: a name can need space where a removal needs none.
func TestNoRoomForASpare(t *testing.T) {
	s := open(t)
	r := come(t, s, "u1", 0)
	must(t, s.Release(r, Change{Phase: Releasing}))
	must(t, s.through(fault.New(fault.Fail(1, syscall.ENOSPC))).Remove(r))
	if _, err := s.Load("u1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record: %v", err)
	}
	if n := len(spareFiles(t, s)); n != 0 {
		t.Errorf("%d spares", n)
	}
}

// overtaken reads a file that becomes another claim's after it was opened.
type overtaken struct {
	disk.OS
	then []byte
}

func (o *overtaken) ReadFile(name string) ([]byte, error) {
	if data := o.then; data != nil {
		o.then = nil
		return data, nil
	}
	return o.OS.ReadFile(name)
}

// TestReadWhileItBecomesASpare: who locked nothing is not told of damage.
func TestReadWhileItBecomesASpare(t *testing.T) {
	s := open(t)
	come(t, s, "u2", 0)
	reader := newStore(&overtaken{then: read(t, path(s, "u2"))}, s.dir)
	if _, err := reader.Load("u1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want that there is no record", err)
	}
}

// TestSparesAndPowerLoss: whatever a power loss takes of claims that come and go, no file has another claim's record, and what was
// promised is there.
func TestSparesAndPowerLoss(t *testing.T) {
	base := t.TempDir()
	s, err := Open(unsynced{}, filepath.Join(base, "state"))
	must(t, err)
	start, err := fault.Snapshot(base)
	must(t, err)
	in := fault.New()
	s = s.through(in)

	promised := map[string]int{} // the operation after which a claim must be there
	at := func(uid string) *Record {
		r := come(t, s, uid, 0)
		promised[uid] = in.Log().Changes()
		return r
	}
	gone(t, s, at("u1"))
	delete(promised, "u1")
	gone(t, s, at("u2")) // takes no spare: that of u1 may have its old name after a power loss
	delete(promised, "u2")
	at("u3") // takes that of u1
	at("u4") // takes that of u2
	if left := len(spareFiles(t, s)); left != 0 {
		t.Fatalf("%d spares were left, want each to be taken", left)
	}

	log, seen := in.Log(), 0
	for n := range log.Changes() + 1 {
		states, err := fault.Replay(start, log.Before(n+1), fault.Options{})
		must(t, err)
		for state := range states {
			seen++
			dir := filepath.Join(t.TempDir(), "after")
			must(t, state.Materialise(dir))
			after := newStore(disk.OS{}, filepath.Join(dir, "state"))
			uids, err := after.UIDs()
			must(t, err)
			for _, uid := range uids {
				if _, err := after.Load(uid); err != nil {
					t.Errorf("power lost after operation %d, lost: %s: %v", n, state.Lost, err)
				}
			}
			for uid, since := range promised {
				if _, err := after.Load(uid); err != nil && since <= n {
					t.Errorf("power lost after operation %d, lost: %s: claim %s: %v", n, state.Lost, uid, err)
				}
			}
		}
	}
	t.Logf("%d cuts, %d states", log.Changes()+1, seen)
}

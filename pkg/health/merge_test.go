// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
)

func owned(by string) Cause {
	return Cause{Reason: "UndoFailed", Owner: by, Message: by + " cannot be released"}
}

// TestOwners: a device is in quarantine until the last of its owners ends.
func TestOwners(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Quarantine(device.KindGPU, "a", owned("u1")))
	m.time = m.time.Add(time.Minute)
	check.Must(t, l.Quarantine(device.KindGPU, "a", owned("u2")))
	check.Must(t, l.Clear("a", "UndoFailed", "u3"))
	check.Must(t, l.Clear("a", "ProgramFailed", "u1"))
	l = m.open()
	if s := l.Statuses()["a"]; s.Message != "u1 cannot be released" {
		t.Errorf("status %+v", s)
	}
	check.Must(t, l.Clear("a", "UndoFailed", "u1"))
	if s := l.Statuses()["a"]; s.State != Quarantined || s.Message != "u2 cannot be released" {
		t.Errorf("status %+v", s)
	}
	check.Must(t, l.Clear("a", "UndoFailed", "u2"))
	m.is(m.open(), "a", Healthy, "")
}

// TestWithoutOwner: what an older release wrote ends with any of the claims, and is not taken for stale.
func TestWithoutOwner(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	check.Must(t, l.Quarantine(device.KindGPU, "a", owned("")))
	check.Must(t, l.Quarantine(device.KindGPU, "a", owned("u1")))
	check.Must(t, l.EndStale("UndoFailed", func(device.Kind, string, string) bool { return false }))
	m.is(l, "a", Quarantined, "UndoFailed")
	check.Must(t, l.Clear("a", "UndoFailed", "u2"))
	m.is(m.open(), "a", Healthy, "")
}

// TestEndStale ends what no owner has a part in, for the one reason, and asks with what the file says.
func TestEndStale(t *testing.T) {
	m := newMachine(t)
	l := m.open()
	for _, name := range []string{"a", "b"} {
		check.Must(t, l.Quarantine(device.KindGPU, name, owned("u1")))
	}
	check.Must(t, l.Quarantine(device.KindFPGA, "c", owned("u2")))
	check.Must(t, l.Quarantine(device.KindGPU, "d", Cause{Reason: "FlashFailed", Owner: "u3"}))
	check.Must(t, m.open().EndStale("UndoFailed", func(kind device.Kind, name, owner string) bool {
		return kind == device.KindGPU && name == "a" && owner == "u1"
	}))
	l = m.open()
	m.is(l, "a", Quarantined, "UndoFailed")
	m.is(l, "b", Healthy, "")
	m.is(l, "c", Healthy, "")
	m.is(l, "d", Quarantined, "FlashFailed")
}

// TestMerge: what one process could not write is entered into what another one wrote meanwhile, and what that one ended stays ended.
func TestMerge(t *testing.T) {
	m := newMachine(t)
	other := m.open()
	check.Must(t, other.Quarantine(device.KindGPU, "theirs", owned("u1")))
	check.Must(t, other.Happened(xid("theirs", "79"), xid("again", "79")))
	d := &faulty{}
	l := Open(Options{FS: d, Dir: m.dir, BootID: m.boot, Table: DefaultTable(), Now: func() time.Time { return m.time }})
	d.err = unix.ENOSPC
	for _, err := range []error{
		l.Quarantine(device.KindGPU, "new", owned("u2")), l.Happened(xid("new", "94")),
		l.SetTaintsKept(true),
	} {
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("got %v, want that the disk is full", err)
		}
	}
	m.time = m.time.Add(time.Minute)
	for _, name := range []string{"theirs", "again"} {
		_, err := other.Recover(name)
		check.Must(t, err)
	}
	check.Must(t, other.Happened(xid("again", "79")))
	d.err = nil
	check.Must(t, l.Expire())
	for _, now := range []*Ledger{l, other, m.open()} {
		check.Must(t, now.Expire())
		m.is(now, "theirs", Healthy, "")
		m.is(now, "new", Quarantined, "UndoFailed")
		m.is(now, "again", Unhealthy, "Xid79")
		if s := now.Statuses()["new"]; s.Kind != device.KindGPU {
			t.Errorf("kind %q of a device that the other process did not know", s.Kind)
		}
		if !now.TaintsKept() {
			t.Error("what the API server does with taints was forgotten")
		}
	}
}

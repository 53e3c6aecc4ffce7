// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// write is a call that changes the store, and what it finds there.
type write struct {
	// arrange returns the record that act is about. It always does the same.
	arrange func(t *testing.T, s *Store) *Record
	act     func(s *Store, r *Record) error
	// names must be in every error.
	names string
	// halves: what it does may be seen half done, since it is the claim's own.
	halves bool
	// once: nobody does it again where it was done.
	once bool
}

func changeOf(c Change) func(s *Store, r *Record) error {
	return func(s *Store, r *Record) error { return s.Advance(r, c) }
}

// prepared is a claim with two steps that was prepared.
func prepared(t *testing.T, s *Store) *Record {
	r := stepping("u1", 2)
	put(t, s, r)
	advance(t, s, r, Change{State: step.Done}, Change{Step: 1, State: step.Done}, Change{Phase: Prepared})
	return r
}

// torn has the beginning of a change behind its record.
func torn(t *testing.T, s *Store) *Record {
	r := prepared(t, s)
	data := append(said(read(t, path(s, "u1"))), `{"length":21,"crc`...)
	check.Must(t, os.WriteFile(path(s, "u1"), data, 0o600))
	return load(t, s, r.UID)
}

func writes() map[string]write {
	const name = "team-a/claim-u1"
	return map[string]write{
		"create": {
			arrange: func(*testing.T, *Store) *Record { return stepping("u1", 1) },
			act:     (*Store).Create, names: name,
		},
		"create after destroy": {
			arrange: func(t *testing.T, s *Store) *Record {
				check.Must(t, s.Destroy())
				return stepping("u1", 1)
			},
			act: (*Store).Create, names: "", // it may be the state directory that cannot be made
		},
		"renew": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := prepared(t, s)
				renewed := stepping("u1", 3)
				renewed.Phase, renewed.Devices = Renewing, r.Devices
				return renewed
			},
			act: (*Store).Create, names: name,
		},
		"step done": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := stepping("u1", 1)
				put(t, s, r)
				return r
			},
			act: changeOf(Change{State: step.Done}), names: name,
		},
		"prepared": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := stepping("u1", 1)
				put(t, s, r)
				advance(t, s, r, Change{State: step.Done})
				return r
			},
			act: changeOf(Change{Phase: Prepared}), names: name,
		},
		"releasing":                  {arrange: prepared, act: changeOf(Change{Phase: Releasing}), names: name},
		"releasing after a torn end": {arrange: torn, act: changeOf(Change{Phase: Releasing}), names: name},
		"remove":                     {arrange: prepared, act: (*Store).Remove, names: name},
		"acquire before the record": {
			arrange: func(*testing.T, *Store) *Record { return holding("u1", "gpu-0", "gpu-1") },
			act:     (*Store).Acquire, names: name,
		},
		"acquire again": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := holding("u1", "gpu-0", "gpu-1")
				check.Must(t, s.Create(r))
				return r
			},
			act: (*Store).Acquire, names: name, halves: true,
		},
		"acquire in another way": {
			arrange: func(t *testing.T, s *Store) *Record {
				put(t, s, sharing("a", "u1", "gpu-0", "gpu-1"))
				r := sharing("b", "u1", "gpu-0", "gpu-1")
				check.Must(t, s.Create(r))
				return r
			},
			act: (*Store).Acquire, names: name, halves: true,
		},
		"set aside": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := holding("u1", "gpu-0")
				put(t, s, r)
				check.Must(t, os.WriteFile(path(s, "u1"), nil, 0o600))
				return r
			},
			act: func(s *Store, r *Record) error { return s.SetAside(r.UID) }, names: "u1", once: true,
		},
		"settle": {
			arrange: func(t *testing.T, s *Store) *Record {
				r := holding("u1", "gpu-0")
				put(t, s, r)
				check.Must(t, s.SetAside("u1"))
				return r
			},
			act: func(s *Store, r *Record) error { return s.ForgetDamaged(r.UID) }, names: "u1",
		},
	}
}

// through is the same directory behind an injector.
func (s *Store) through(in *fault.Injector) *Store {
	return &Store{locks: s.locks, fs: in.FS(unsynced{}), dir: s.dir}
}

// meaning is what the store says of the claim, whatever lies about.
func meaning(t *testing.T, s *Store, uid string) string {
	t.Helper()
	r, err := s.Load(uid)
	state := "unreadable"
	switch {
	case err == nil:
		state = fmt.Sprintf("%s with %s", r.Phase, stepStates(r))
	case errors.Is(err, fs.ErrNotExist):
		state = "no record"
	}
	held := map[string]bool{}
	for _, gpu := range []string{"gpu-0", "gpu-1", "gpu-" + uid} {
		held[gpu] = slices.Contains(holders(t, s, gpu), uid)
	}
	return fmt.Sprintf("%s, holds %v, in doubt %v", state, held, s.InDoubt(uid))
}

// TestEveryWriteFails makes each operation of each call fail, in every way that a disk has. The error is clear, what the call is about
// is as before or as after, and the same call made again when all is well ends as if nothing had happened.
func TestEveryWriteFails(t *testing.T) {
	for name, w := range writes() {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			r := w.arrange(t, s)
			before := meaning(t, s, r.UID)
			in := fault.New()
			check.Must(t, w.act(s.through(in), r))
			good := outcome{before: before, after: meaning(t, s, r.UID), content: content(t, s)}
			points := in.Log().Changes()
			cases := 0
			for n := range points {
				for _, f := range faultsAt(n + 1) {
					for _, restart := range []bool{false, true} {
						w.fails(t, f, restart, good)
						cases++
					}
				}
			}
			t.Logf("%d operations, %d cases", points, cases)
			if points == 0 {
				t.Error("nothing was written")
			}
		})
	}
}

func faultsAt(n int) []fault.Fault {
	return []fault.Fault{
		fault.Fail(n, syscall.ENOSPC), fault.Fail(n, syscall.EROFS), fault.Fail(n, syscall.EIO), fault.Short(n),
		fault.Full(n), fault.ReadOnly(n), fault.Lose(n, syscall.EIO),
	}
}

// outcome is how it goes when nothing fails.
type outcome struct {
	before, after string
	content       map[string]string
}

// fails runs the call with one fault, and again without.
func (w write) fails(t *testing.T, f fault.Fault, restart bool, good outcome) {
	t.Helper()
	s := open(t)
	r := w.arrange(t, s)
	in := fault.New(f)
	err := w.act(s.through(in), r)
	what := fmt.Sprintf("%s at %d (restart %v)", f.Do, f.At, restart)
	if f.Errno != 0 {
		what += " " + f.Errno.Error()
	}
	disturbed := slices.ContainsFunc(in.Log(), func(op fault.Op) bool {
		return op.Fault != "" || f.Do == fault.ActLose && op.N == f.At && !op.Kind.Read() && op.Done
	})
	if (err != nil) != disturbed {
		t.Errorf("%s: error %v, disturbed %v", what, err, disturbed)
		return
	}
	if err != nil && (!strings.Contains(err.Error(), w.names) || !isAny(err, syscall.ENOSPC, syscall.EROFS, syscall.EIO)) {
		t.Errorf("%s: error %q, want it to name %q and the reason", what, err, w.names)
	}
	if got := meaning(t, s, r.UID); got != good.before && got != good.after && !w.halves {
		t.Errorf("%s: is %s\nwant the state before: %s\nor after: %s", what, got, good.before, good.after)
	}
	// Whoever cannot write cannot clean up, and does not know of what it made without being told.
	if left := temporary(t, s); len(left) > 0 && f.Do != fault.ActRO && f.Do != fault.ActLose {
		t.Errorf("%s: left %v", what, left)
	}
	check.Must(t, s.SweepTemporary())
	if restart {
		r = restarted(t, s, r, good)
	}
	if w.once && meaning(t, s, r.UID) == good.after {
		r = nil
	}
	if err != nil && r != nil {
		if err := w.act(s, r); err != nil {
			t.Errorf("%s, then without a fault: %v", what, err)
		}
	}
	if diff := cmp.Diff(good.content, content(t, s)); diff != "" {
		t.Errorf("%s: in the end (-want +got):\n%s", what, diff)
	}
}

// restarted is what another process has of the record: nil where there is nothing left to do.
func restarted(t *testing.T, s *Store, r *Record, good outcome) *Record {
	t.Helper()
	found, err := s.Load(r.UID)
	if err != nil || r.Phase == Renewing {
		return r // a new one, or one that is gone or set aside
	}
	if good.before != good.after && meaning(t, s, r.UID) == good.after {
		return nil
	}
	return found
}

func temporary(t *testing.T, s *Store) []string {
	t.Helper()
	return slices.DeleteFunc(files(t, s), func(name string) bool { return !strings.Contains(name, disk.TemporaryPrefix) })
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(one error) bool { return errors.Is(err, one) })
}

// TestEveryReadFails: what cannot be read is not taken for what is not there.
func TestEveryReadFails(t *testing.T) {
	questions := map[string]func(s *Store) error{
		"load": func(s *Store) error {
			_, err := s.Load("u1")
			return err
		},
		"acquire": func(s *Store) error { return s.Acquire(holding("u2", "gpu-0")) },
		"acquire a share": func(s *Store) error {
			return s.Acquire(sharing("a", "u2", "gpu-1"))
		},
		"holders": func(s *Store) error {
			uids, err := s.Holders(pool, "gpu-0")
			if err == nil && slices.Equal(uids, []string{"u1"}) {
				return &InUseError{Owner: &Record{}} // as it is
			}
			return err
		},
		"claims": func(s *Store) error {
			_, err := s.UIDs()
			return err
		},
		"damaged": func(s *Store) error {
			_, err := s.Damaged()
			return err
		},
	}
	for name, ask := range questions {
		for _, lost := range []bool{false, true} {
			s := open(t)
			put(t, s, holding("u1", "gpu-0"), sharing("a", "u3", "gpu-1"))
			if lost {
				check.Must(t, s.SetAside("u1"))
			}
			in := fault.New()
			usual := fmt.Sprint(ask(s.through(in)))
			for n := range in.Log().Reads() {
				broken := s.through(fault.New(fault.FailRead(n+1, syscall.EIO)))
				err := ask(broken)
				_, inUse := errors.AsType[*InUseError](err)
				if !errors.Is(err, syscall.EIO) && !inUse || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
					t.Errorf("%s, lost %v, read %d: %v, usually %s", name, lost, n+1, err, usual)
				}
			}
		}
	}
	s := open(t)
	put(t, s, holding("u1", "gpu-0"))
	check.Must(t, s.SetAside("u1"))
	in := fault.New()
	s.through(in).Held(pool, "gpu-0")
	for n := range in.Log().Reads() {
		if !s.through(fault.New(fault.FailRead(n+1, syscall.EIO))).Held(pool, "gpu-0") {
			t.Errorf("read %d failed and the device counts as free", n+1)
		}
	}
}

// closing is a file system that finds out only when a file is closed that it had no room, as some do.
type closing struct{ unsynced }

type closingFile struct{ disk.File }

func (f closingFile) Close() error { return errors.Join(f.File.Close(), syscall.ENOSPC) }

func (c closing) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := c.unsynced.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return closingFile{f}, nil
}

// TestFailedChangeIsNotMade: after a change that may or may not be in the file another one may follow, as when a Prepare is rolled
// back.
func TestFailedChangeIsNotMade(t *testing.T) {
	broken := map[string]func(s *Store) *Store{
		"write": func(s *Store) *Store { return s.through(fault.New(fault.Fail(1, syscall.ENOSPC))) },
		"half":  func(s *Store) *Store { return s.through(fault.New(fault.Short(1))) },
		"sync":  func(s *Store) *Store { return s.through(fault.New(fault.Fail(2, syscall.EIO))) },
		"close": func(s *Store) *Store { return &Store{locks: s.locks, fs: closing{}, dir: s.dir} },
	}
	for name, broken := range broken {
		for _, then := range []Change{{Phase: Prepared}, {Phase: Releasing}} {
			s, r := open(t), stepping("u1", 1)
			put(t, s, r)
			advance(t, s, r, Change{State: step.Done})
			before := read(t, path(s, "u1"))
			for range 3 {
				if err := broken(s).Advance(r, Change{Phase: Prepared}); err == nil || r.Phase != Intended {
					t.Errorf("%s: %v, phase %s", name, err, r.Phase)
				}
			}
			advance(t, s, r, then)
			same(t, name, r, load(t, s, "u1"))
			line, err := encodeFrame(head{}, then)
			check.Must(t, err)
			if got := string(said(read(t, path(s, "u1")))); got != string(said(before))+string(line) {
				t.Errorf("%s: the file is %s", name, got)
			}
		}
	}
	s := open(t)
	if err := (&Store{locks: s.locks, fs: closing{}, dir: s.dir}).Create(holding("u1", "gpu-0")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("create: %v", err)
	}
	if left := files(t, s); len(left) > 0 {
		t.Errorf("create left %v", left)
	}
}

// TestPowerLoss cuts the life of a record off at each operation, and looks at everything that a disk may hold then. What was promised
// is there; what was not is there or not, but never half, and no record is damaged.
func TestPowerLoss(t *testing.T) {
	base := t.TempDir()
	in := fault.New()
	s, err := Open(in.FS(unsynced{}), filepath.Join(base, "state"))
	check.Must(t, err)
	start, err := fault.Snapshot(base)
	check.Must(t, err)
	opened := in.Log().Changes()
	in = fault.New()
	s = s.through(in)

	type call struct {
		state   string // after it
		durable bool   // once it returned
		done    int    // operations until it returned
	}
	calls := []call{{state: "no record", durable: true}}
	note := func(r *Record, durable bool, err error) {
		check.Must(t, err)
		state := "no record"
		if r != nil {
			state = fmt.Sprintf("%s with %s", r.Phase, stepStates(r))
		}
		calls = append(calls, call{state: state, durable: durable, done: in.Log().Changes()})
	}
	r := stepping("u1", 2)
	check.Must(t, s.Acquire(r))
	note(r, true, s.Create(r))
	for _, c := range []Change{{State: step.Done}, {Step: 1, State: step.Done}, {Phase: Prepared}} {
		err := s.Advance(r, c)
		note(r, c.Phase == Prepared, err)
	}
	renewed := stepping("u1", 2)
	renewed.Phase = Renewing
	note(renewed, true, s.Create(renewed))
	for _, c := range []Change{{State: step.Done}, {Step: 1, State: step.Done}, {Phase: Prepared}, {Phase: Releasing}} {
		err := s.Advance(renewed, c)
		note(renewed, c.Phase == Prepared, err)
	}
	for _, i := range []int{1, 0} {
		err := s.Advance(renewed, Change{Step: i, State: step.Undone})
		note(renewed, renewed.Released(), err)
	}
	note(nil, false, s.Remove(renewed)) // that it is released is certain
	plain := stepping("u1", 0)
	plain.Phase = Prepared
	note(plain, true, s.Create(plain))
	note(plain, true, s.Release(plain, Change{Phase: Releasing}))
	found, err := s.Load("u1")
	check.Must(t, err)
	note(nil, true, s.Release(found, Change{})) // who only found it so cannot know
	again := stepping("u1", 0)
	again.Phase = Prepared
	note(again, true, s.Create(again))
	note(nil, true, s.Remove(again))

	seen, shown := 0, map[string]int{}
	log := in.Log()
	for n := range log.Changes() + 1 {
		// From the last durable call that had returned to the one that was under way.
		first, last := 0, 0
		for i, c := range calls {
			if c.done <= n {
				last = min(i+1, len(calls)-1)
				if c.durable {
					first = i
				}
			}
		}
		allowed := map[string]bool{}
		for _, c := range calls[first : last+1] {
			allowed[c.state] = true
		}
		states, err := fault.Replay(start, log.Before(n+1), fault.Options{})
		check.Must(t, err)
		for state := range states {
			dir := filepath.Join(t.TempDir(), "after")
			check.Must(t, state.Materialise(dir))
			after := &Store{fs: disk.OS{}, dir: filepath.Join(dir, "state")}
			got := "no record"
			found, err := after.Load("u1")
			if err == nil {
				got = fmt.Sprintf("%s with %s", found.Phase, stepStates(found))
			} else if !errors.Is(err, fs.ErrNotExist) {
				got = err.Error()
			}
			if !allowed[got] {
				t.Errorf("power lost after operation %d: %s, want one of %v; lost: %s", n, got, slices.Sorted(maps.Keys(allowed)), state.Lost)
			}
			seen++
			shown[got]++
		}
	}
	t.Logf("%d operations before, %d cuts, %d states: %v", opened, log.Changes()+1, seen, shown)
	for _, c := range calls {
		if shown[c.state] == 0 {
			t.Errorf("never seen: %s", c.state)
		}
	}
}

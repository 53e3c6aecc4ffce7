// SPDX-License-Identifier: Apache-2.0

package hostdir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// lent is a directory of a host that was lent and written to.
type lent struct {
	root, path string
	step       step.Step
}

const (
	mode = 0o750
	// trashPrefix is what the names begin with that Purge deletes.
	trashPrefix = ".fettle-trash-"
)

func lend(t *testing.T) lent {
	t.Helper()
	l := lent{root: t.TempDir()}
	l.path = filepath.Join(l.root, "lent")
	check.Must(t, os.Mkdir(l.path, mode))
	var err error
	l.step, err = hostdir.Plan(l.root, "/lent", "u1")
	check.Must(t, err)
	check.Must(t, l.kind(fault.New()).Apply(t.Context(), l.step.Params))
	check.Must(t, os.MkdirAll(filepath.Join(l.path, "b", "sub"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(l.path, "a"), []byte("secret"), 0o600))
	large := filepath.Join(l.path, "c")
	check.Must(t, os.WriteFile(large, nil, 0o600))
	check.Must(t, os.Truncate(large, 1<<20))
	return l
}

func (l lent) kind(in *fault.Injector) step.Kind { return hostdir.Kind(l.root, in.Root) }

func (l lent) open(t *testing.T) *hostdir.Dir {
	t.Helper()
	d, err := hostdir.Open(l.path)
	check.Must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check.Must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func isTrash(name string) bool { return strings.HasPrefix(name, trashPrefix) }

// kinds are the changes of a log, in order.
func kinds(log fault.Log) []fault.Kind {
	var out []fault.Kind
	for _, op := range log {
		if !op.Kind.Read() {
			out = append(out, op.Kind)
		}
	}
	return out
}

// TestUndoInOrder: content is out of the way and the owner is restored for good before anything is deleted that may take long, and before
// the directory is anybody else's. Also where an attempt that was cut off had done it all but for the sync.
func TestUndoInOrder(t *testing.T) {
	l, in := lend(t), fault.New()
	check.Must(t, hostdir.Undo(t.Context(), l.kind(in), l.step.Params))
	log := in.Log()
	removed := []fault.Kind{fault.Remove, fault.Remove, fault.Remove, fault.Remove, fault.Remove, fault.Remove}
	want := append([]fault.Kind{fault.Remove, fault.Mkdir, fault.Rename, fault.Rename, fault.Chown, fault.Chmod, fault.SyncDir}, removed...)
	if diff := cmp.Diff(want, kinds(log)); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	check.Must(t, hostdir.Undo(t.Context(), l.kind(in), l.step.Params))
	log = append(log, in.Log()[len(log):]...)
	if diff := cmp.Diff(append(want, fault.Chown, fault.Chmod, fault.SyncDir), kinds(log)); diff != "" {
		t.Errorf("operations of both (-want +got):\n%s", diff)
	}
	for _, op := range log {
		if op.Kind == fault.SyncDir && op.Path != l.path {
			t.Errorf("synced %s, want %s", op.Path, l.path)
		}
	}
}

// elsewhere are the parameters of a step whose directory was made again in another place, as from what a power loss leaves of it.
func elsewhere(t *testing.T, s step.Step) step.Step {
	t.Helper()
	params, err := step.Decode[hostdir.Params](s.Params)
	check.Must(t, err)
	params.Place = nil
	s, err = step.New(s.Kind, s.Target, params)
	check.Must(t, err)
	return s
}

// TestUndoAndPowerLoss looks at everything that a disk may hold if the power goes during Undo: the next one ends well. Once Undo
// returned no content is in its place, and the directory has its owner's mode again.
func TestUndoAndPowerLoss(t *testing.T) {
	l, in := lend(t), fault.New()
	start, err := fault.Snapshot(l.root)
	check.Must(t, err)
	check.Must(t, hostdir.Undo(t.Context(), l.kind(in), l.step.Params))
	log := in.Log()
	seen := 0
	for n := range log.Changes() + 1 {
		states, err := fault.Replay(start, log.Before(n+1), fault.Options{})
		check.Must(t, err)
		for state := range states {
			seen++
			after := lent{root: filepath.Join(t.TempDir(), "after"), step: elsewhere(t, l.step)}
			after.path = filepath.Join(after.root, "lent")
			check.Must(t, state.Materialise(after.root))
			if n == log.Changes() {
				after.check(t, fmt.Sprintf("undone; lost: %s", state.Lost), isTrash)
			}
			check.Must(t, hostdir.Undo(t.Context(), after.kind(fault.New()), after.step.Params))
			check.Must(t, after.open(t).Purge(t.Context()))
			after.check(t, fmt.Sprintf("power lost after operation %d, then undone; lost: %s", n, state.Lost), func(string) bool { return false })
		}
	}
	t.Logf("%d cuts, %d states", log.Changes()+1, seen)
}

// check wants the mode restored, and no name that may not be there.
func (l lent) check(t *testing.T, what string, may func(name string) bool) {
	t.Helper()
	for _, name := range names(t, l.path) {
		if !may(name) {
			t.Errorf("%s: %s is there", what, name)
		}
	}
	if info, err := os.Stat(l.path); err != nil || info.Mode() != os.ModeDir|mode {
		t.Errorf("%s: mode %v (%v), want %o", what, info.Mode(), err, mode)
	}
}

// TestUndoFails makes each operation of Undo fail: either the error is told, and the next Undo succeeds, or all that is left is to
// delete what was set aside. A disk that is full is no reason to fail.
func TestUndoFails(t *testing.T) {
	told, kept := 0, 0
	for n := 1; ; n++ {
		reached := false
		for _, f := range []fault.Fault{
			fault.Fail(n, syscall.ENOSPC), fault.Full(n), fault.Fail(n, syscall.EIO), fault.ReadOnly(n), fault.Lose(n, syscall.EIO),
			fault.FailRead(n, syscall.EIO),
		} {
			l, in := lend(t), fault.New(f)
			err := hostdir.Undo(t.Context(), l.kind(in), l.step.Params)
			reached = reached || slices.ContainsFunc(in.Log(), func(op fault.Op) bool { return op.Fault != "" })
			left := names(t, l.path)
			full := f.Errno == syscall.ENOSPC
			serious := func(op fault.Op) bool {
				return op.Fault != "" && !op.Kind.Read() && op.Kind != fault.Remove && (!full || op.Kind.Sync())
			}
			if err != nil && full && !slices.ContainsFunc(in.Log(), serious) {
				t.Errorf("%s at %d: %v", f.Do, n, err)
			}
			if err == nil && slices.ContainsFunc(in.Log(), serious) {
				t.Errorf("%s at %d is not told", f.Do, n)
			}
			switch {
			case err != nil:
				told++
				if !strings.Contains(err.Error(), l.path) {
					t.Errorf("%s at %d: error %v does not name the directory", f.Do, n, err)
				}
			case len(left) > 0:
				kept++
				if !isTrash(left[0]) {
					t.Errorf("%s at %d: left %v without a word", f.Do, n, left)
				}
			}
			check.Must(t, hostdir.Undo(t.Context(), l.kind(fault.New()), l.step.Params))
			check.Must(t, l.open(t).Purge(t.Context()))
			l.check(t, fmt.Sprintf("%s at %d, then undone", f.Do, n), func(string) bool { return false })
		}
		if !reached {
			break
		}
	}
	t.Logf("%d errors told, %d times something was left to delete", told, kept)
	if told == 0 || kept == 0 {
		t.Error("expected some of each")
	}
}

// TestApplyFails: who cannot lend says of what.
func TestApplyFails(t *testing.T) {
	l := lend(t)
	err := l.kind(fault.New(fault.ReadOnly(1))).Apply(t.Context(), l.step.Params)
	check.WantErr(t, err, nil, l.path)
}

// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// lend plans and applies the step on a host root whose only directory is /lent.
func lend(t *testing.T, p place) (step.Kind, step.Step) {
	t.Helper()
	root := filepath.Dir(p.lent)
	s, err := Plan(root, "/lent", "u1")
	check.Must(t, err)
	return Kind(root, OpenRoot), s
}

// Undo does both parts of it.
func Undo(ctx context.Context, kind step.Kind, params json.RawMessage) error {
	if err := kind.Undo(ctx, params); err != nil {
		return err
	}
	return kind.Finish(ctx, params)
}

func TestStep(t *testing.T) {
	p := newPlace(t)
	check.Must(t, os.Chmod(p.lent, 0o750))
	kind, s := lend(t, p)
	if s.Kind != StepKind {
		t.Errorf("kind %q", s.Kind)
	}
	for range 2 {
		check.Must(t, kind.Apply(t.Context(), s.Params))
	}
	check.Must(t, os.Mkdir(filepath.Join(p.lent, "data"), 0o700))
	// There is no time to delete: the content is out of the way, and the directory is not lent again until it is gone.
	none, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		check.Must(t, Undo(none, kind, s.Params))
	}
	if info, err := os.Stat(p.lent); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("mode %v (%v) was not restored", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(p.lent, "data")); err == nil {
		t.Error("the content is still in its place")
	}
	_, err := Plan(filepath.Dir(p.lent), "/lent", "u2")
	check.WantErr(t, err, ErrDirty, "/lent")
	check.Must(t, p.open(t).Purge(t.Context()))
	if _, err := Plan(filepath.Dir(p.lent), "/lent", "u2"); err != nil {
		t.Errorf("after Purge: %v", err)
	}
	p.untouched(t)
}

func TestUndoWithoutTheDirectory(t *testing.T) {
	p := newPlace(t)
	kind, s := lend(t, p)
	check.Must(t, os.Remove(p.lent))
	if err := Undo(t.Context(), kind, s.Params); err != nil {
		t.Errorf("undo: %v", err)
	}
	if err := kind.Apply(t.Context(), s.Params); err == nil {
		t.Error("applied on nothing")
	}
	check.Must(t, os.Symlink(p.outside, p.lent))
	if err := Undo(t.Context(), kind, s.Params); err == nil {
		t.Error("undone through a link")
	}
	p.untouched(t)
}

func TestStepRefusesForeignParams(t *testing.T) {
	p := newPlace(t)
	kind, _ := lend(t, p)
	for _, raw := range []string{"", "{", "[]", `{"path":1}`} {
		if kind.Undo(t.Context(), json.RawMessage(raw)) == nil || kind.Finish(t.Context(), json.RawMessage(raw)) == nil {
			t.Errorf("undo %q: no error", raw)
		}
	}
}

// TestVerify: a directory that is lent is still there. What its pod made of the mode is its own doing.
func TestVerify(t *testing.T) {
	p := newPlace(t)
	kind, s := lend(t, p)
	check.Must(t, kind.Apply(t.Context(), s.Params))
	check.Must(t, os.Chmod(p.lent, 0o700))
	check.Must(t, os.WriteFile(filepath.Join(p.lent, "data"), nil, 0o600))
	check.Must(t, kind.Verify(t.Context(), s.Params))
	if info, err := os.Stat(p.lent); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v (%v) was changed", info.Mode(), err)
	}
	if diff := cmp.Diff([]string{"data"}, names(t, p.lent)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	check.Must(t, os.RemoveAll(p.lent))
	if err := kind.Verify(t.Context(), s.Params); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the directory: %v", err)
	}
	check.Must(t, os.Symlink(p.outside, p.lent))
	if err := kind.Verify(t.Context(), s.Params); err == nil {
		t.Error("verified a link")
	}
}

// TestPlanUndo: a directory whose step is not remembered is emptied, however dirty it is, and is no longer open to all.
func TestPlanUndo(t *testing.T) {
	p := newPlace(t)
	kind, lent := lend(t, p)
	check.Must(t, kind.Apply(t.Context(), lent.Params))
	check.Must(t, os.WriteFile(filepath.Join(p.lent, "data"), nil, 0o600))
	check.Must(t, os.Mkdir(filepath.Join(p.lent, trashPrefix+"u0-0"), 0o700))
	s, err := PlanUndo(filepath.Dir(p.lent), "/lent", "u1")
	check.Must(t, err)
	if !s.Same(lent) {
		t.Errorf("step %s, want %s", s, lent)
	}
	check.Must(t, Undo(t.Context(), kind, s.Params))
	check.Must(t, p.open(t).Purge(t.Context()))
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if info, err := os.Stat(p.lent); err != nil || info.Mode() != os.ModeDir|0o755 {
		t.Errorf("mode %v (%v), want it closed", info.Mode(), err)
	}
	if _, err := PlanUndo(filepath.Dir(p.lent), "/missing", "u1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	p.untouched(t)
}

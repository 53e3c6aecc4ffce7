// SPDX-License-Identifier: Apache-2.0

package restorepoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

const sharedKind = "gpu.compute-mode"

// params are those of a step of a shared device: the claim's own, and what it found.
type params struct{ Claim, Before string }

func sharedStep(t testing.TB, claim, before string) step.Step {
	t.Helper()
	s, err := step.New(sharedKind, target, params{claim, before})
	check.Must(t, err)
	return s
}

// undo undoes a claim's step and returns what was restored, "" for nothing.
func undo(t testing.TB, s *restorepoint.Store, claim string) (restored string) {
	t.Helper()
	check.Must(t, restorepoint.Undo(s, claim, sharedKind, target, func(before *params) error {
		restored = before.Before
		return nil
	}))
	return restored
}

// TestShared: the first claim's values are restored when the last claim ends, whichever that is.
func TestShared(t *testing.T) {
	for name, order := range map[string][]string{
		"the first leaves first": {"a", "b", "c"}, "the first leaves last": {"c", "b", "a"}, "one leaves twice": {"b", "b", "a", "b", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "points")
			s := open(t, dir, "boot1")
			first, err := s.Join("a", "mode X", sharedStep(t, "a", "former"))
			check.Must(t, err)
			for _, claim := range []string{"b", "a", "c", "b"} {
				p, err := s.Join(claim, "mode X", sharedStep(t, claim, "mode X"))
				check.Must(t, err)
				if diff := cmp.Diff(first.Step, p.Step); diff != "" {
					t.Errorf("the former values (-first +now):\n%s", diff)
				}
			}
			s = open(t, dir, "boot1") // the next process
			for i, claim := range order {
				want := ""
				if i == len(order)-1 {
					want = "former"
				}
				if got := undo(t, s, claim); got != want {
					t.Errorf("%s ended: restored %q, want %q", claim, got, want)
				}
				if got := undo(t, s, claim); got != "" {
					t.Errorf("%s ended twice: restored %q", claim, got)
				}
			}
			if points, err := s.List(); err != nil || len(points) > 0 {
				t.Errorf("left: %+v, %v", points, err)
			}
		})
	}
}

// TestDisagrees: another setting is refused with both settings and without the claims, also by Agrees; nothing has changed then.
func TestDisagrees(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "points"), "boot1")
	check.Must(t, s.Agrees("mode Y", sharedKind, target))
	_, err := s.Join("uid-1", "mode X", sharedStep(t, "uid-1", "former"))
	check.Must(t, err)
	_, joined := s.Join("uid-2", "mode Y", sharedStep(t, "uid-2", "mode X"))
	for _, err := range []error{joined, s.Agrees("mode Y", sharedKind, target)} {
		if !errors.Is(err, restorepoint.ErrDisagrees) {
			t.Fatalf("%v, want ErrDisagrees", err)
		}
		for _, word := range []string{target, "mode X", "mode Y"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v, want %q in it", err, word)
			}
		}
		if strings.Contains(err.Error(), "uid-") {
			t.Errorf("%v names a claim", err)
		}
	}
	check.Must(t, s.Agrees("mode X", sharedKind, target))
	check.Must(t, s.End("uid-2", sharedKind, target))
	if p, ok, err := s.Find(sharedKind, target); err != nil || !ok || !cmp.Equal(p.Claims(), []string{"uid-1"}) {
		t.Errorf("%+v, %v, %v", p, ok, err)
	}
	// A point is of one form: who has a device alone shares it with nobody.
	if _, err := s.Begin("uid-1", sharedStep(t, "uid-1", "x")); !errors.Is(err, restorepoint.ErrHeld) {
		t.Errorf("begun on a shared point: %v", err)
	}
	_, err = s.Begin("uid-1", stepOf(t, target, "nvidia"))
	check.Must(t, err)
	if _, err := s.Join("uid-1", "mode X", stepOf(t, target, "x")); !errors.Is(err, restorepoint.ErrHeld) {
		t.Errorf("joined a point of one claim: %v", err)
	}
	if err := s.Agrees("mode X", kind, target); !errors.Is(err, restorepoint.ErrHeld) {
		t.Errorf("agrees with a point of one claim: %v", err)
	}
}

// TestLostRecords: each claim's own step is found without its record.
func TestLostRecords(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "points"), "boot1")
	for _, claim := range []string{"a", "b"} {
		_, err := s.Join(claim, "mode X", sharedStep(t, claim, "former"))
		check.Must(t, err)
	}
	_, err := s.Begin("c", stepOf(t, target, "nvidia"))
	check.Must(t, err)
	lock, err := s.Lock(t.Context(), sharedKind, target)
	check.Must(t, err)
	check.Must(t, lock.Close())
	points, err := s.List() // without the lock file
	check.Must(t, err)
	found := map[string]string{}
	for _, p := range points {
		for _, claim := range p.Claims() {
			st, ok := p.Of(claim)
			if !ok || !p.Has(claim) || p.Has("nobody") {
				t.Errorf("%s in %+v", claim, p)
			}
			found[claim] = string(st.Params)
		}
		if _, ok := p.Of("nobody"); ok {
			t.Errorf("nobody has %+v", p)
		}
	}
	want := map[string]string{"a": `{"Claim":"a","Before":"former"}`, "b": `{"Claim":"b","Before":"former"}`, "c": `"nvidia"`}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestSharedReboot: claims of an earlier boot have nothing, and restore nothing.
func TestSharedReboot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	_, err := open(t, dir, "boot1").Join("a", "mode X", sharedStep(t, "a", "former"))
	check.Must(t, err)
	s := open(t, dir, "boot2")
	check.Must(t, s.Agrees("mode Y", sharedKind, target))
	if got := undo(t, s, "a"); got != "" {
		t.Errorf("restored %q", got)
	}
	_, err = open(t, dir, "boot1").Join("a", "mode X", sharedStep(t, "a", "former"))
	check.Must(t, err)
	p, err := s.Join("b", "mode Y", sharedStep(t, "b", "now"))
	check.Must(t, err)
	if diff := cmp.Diff([]string{"b"}, p.Claims()); diff != "" || p.BootID != "boot2" || p.Setting != "mode Y" {
		t.Errorf("%+v: %s", p, diff)
	}
	if got := undo(t, s, "b"); got != "now" {
		t.Errorf("restored %q", got)
	}
}

// TestOlderFiles: a point that a release without shared points wrote is read as before, and one of one claim is written as before.
func TestOlderFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	s := open(t, dir, "boot1")
	name := filepath.Join(dir, "pci.bind_0000:16:00.0.json")
	const older = `{"version":1,"claim":"a","bootID":"boot1","step":{"kind":"pci.bind","target":"0000:16:00.0","params":"nvidia"}}` + "\n"
	check.Must(t, os.WriteFile(name, []byte(older), 0o600))
	p, mine, err := s.Mine("a", kind, target)
	if err != nil || !mine || string(p.Step.Params) != `"nvidia"` || !cmp.Equal(p.Claims(), []string{"a"}) {
		t.Errorf("%+v, %v, %v", p, mine, err)
	}
	check.Must(t, s.End("a", kind, target))
	_, err = s.Begin("a", stepOf(t, target, "nvidia"))
	check.Must(t, err)
	written, err := os.ReadFile(name)
	check.Must(t, err)
	if diff := cmp.Diff(older, string(written)); diff != "" {
		t.Errorf("-older +written:\n%s", diff)
	}
	check.Must(t, os.WriteFile(name, []byte(`{"version":2,"bootID":"boot1","setting":"x"}`), 0o600))
	if _, err := s.List(); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("a shared point without claims: %v", err)
	}
}

// TestSharedDisk: an operation on the disk that fails is told, and the point is as before or as after. A second try ends well.
func TestSharedDisk(t *testing.T) {
	for n := 1; n <= 12; n++ {
		dir := filepath.Join(t.TempDir(), "points")
		whole := open(t, dir, "boot1")
		_, err := whole.Join("a", "mode X", sharedStep(t, "a", "former"))
		check.Must(t, err)
		in := fault.New(fault.Fail(n, syscall.EIO))
		s := restorepoint.Open(in.FS(disk.OS{}), dir, "boot1")
		_, err = s.Join("b", "mode X", sharedStep(t, "b", "mode X"))
		if err == nil {
			err = s.End("a", sharedKind, target)
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d fails: %v\n%s", n, err, in.Log())
		}
		p, ok, err := whole.Find(sharedKind, target)
		if err != nil || !ok || len(p.Claims()) == 0 {
			t.Fatalf("after operation %d failed: %+v, %v, %v", n, p, ok, err)
		}
		_, err = whole.Join("b", "mode X", sharedStep(t, "b", "mode X"))
		check.Must(t, err)
		if got := undo(t, whole, "a") + undo(t, whole, "b"); got != "former" {
			t.Errorf("after operation %d failed: restored %q", n, got)
		}
	}
}

// TestLock: a second one waits until the first is closed, and names what it waits for.
func TestLock(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "points"), "boot1")
	first, err := s.Lock(t.Context(), sharedKind, target)
	check.Must(t, err)
	other, err := s.Lock(t.Context(), sharedKind, "0000:99:00.0")
	check.Must(t, err)
	if _, err := s.Lock(check.Passed(t), sharedKind, target); !errors.Is(err, filelock.ErrHeld) || !strings.Contains(err.Error(), target) {
		t.Errorf("locked twice: %v", err)
	}
	check.Must(t, errors.Join(first.Close(), other.Close()))
	again, err := s.Lock(t.Context(), sharedKind, target)
	check.Must(t, err)
	check.Must(t, again.Close())
	if _, err := s.Lock(t.Context(), sharedKind, "../x"); err == nil {
		t.Error("a target that leads elsewhere is locked")
	}
}

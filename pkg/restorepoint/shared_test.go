// SPDX-License-Identifier: Apache-2.0

package restorepoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/fettle-dev/fettle/test/seed"
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
	change := restorepoint.Change{Claim: claim, Kind: sharedKind, Target: target}
	check.Must(t, restorepoint.Undo(s, change, func(before *params) error {
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

// TestEndsOnFullDisk: claims that share a device end on a disk on which nothing can be made or written, and the last one restores it.
func TestEndsOnFullDisk(t *testing.T) {
	in := fault.New()
	s := restorepoint.Open(in.FS(disk.OS{}), filepath.Join(t.TempDir(), "points"), "boot1")
	check.Must(t, s.Make())
	for _, claim := range []string{"a", "b", "c"} {
		_, err := s.Join(claim, "mode X", sharedStep(t, claim, "former"))
		check.Must(t, err)
	}
	in.Set(fault.Full(1))
	if _, err := s.Join("d", "mode X", sharedStep(t, "d", "mode X")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	for claim, want := range map[string]string{"d": "", "b": "", "a": ""} {
		if got := undo(t, s, claim); got != want {
			t.Errorf("%s ended: restored %q", claim, got)
		}
	}
	if got := undo(t, s, "c"); got != "former" {
		t.Errorf("the last one ended: restored %q", got)
	}
}

// TestOfNoClaim: a point whose first claim could not be noted holds up no claim with another setting.
func TestOfNoClaim(t *testing.T) {
	const files = 6 // operations that write one
	dir := filepath.Join(t.TempDir(), "points")
	whole := open(t, dir, "boot1")
	s := restorepoint.Open(fault.New(fault.Full(files+1)).FS(disk.OS{}), dir, "boot1")
	if _, err := s.Join("a", "mode X", sharedStep(t, "a", "former")); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Fatalf("left %v, %v, want the point", left, err)
	}
	if points, err := whole.List(); err != nil || len(points) > 0 {
		t.Errorf("listed %+v, %v", points, err)
	}
	check.Must(t, whole.Agrees("mode Y", sharedKind, target))
	_, err := whole.Join("b", "mode Y", sharedStep(t, "b", "now"))
	check.Must(t, err)
	if got := undo(t, s, "a") + undo(t, whole, "b"); got != "now" {
		t.Errorf("restored %q", got)
	}
}

// TestRandomSharers: whatever claims come and end, whichever operations on the disk fail or are done without a word, over restarts and
// reboots, the device is set as long as a claim has it, and the last one restores what the first one found.
func TestRandomSharers(t *testing.T) {
	random := seed.New(t)
	claims := []string{"a", "a-1", "b", "c"}
	for round := range 30 {
		dir := filepath.Join(t.TempDir(), "points")
		boot, now := "boot0", "former"
		in := fault.New()
		reopened := func() *restorepoint.Store { return restorepoint.Open(in.FS(disk.OS{}), dir, boot) }
		check.Must(t, reopened().Make())
		has := map[string]bool{} // what the callers were told; false: the claim is ending
		for range 40 {
			claim := claims[random.IntN(len(claims))]
			if in = fault.New(); random.IntN(3) == 0 {
				n := 1 + random.IntN(9)
				in.Set([]fault.Fault{fault.Fail(n, syscall.EIO), fault.Full(n), fault.Lose(n, syscall.EIO)}[random.IntN(3)])
			}
			_, ending := has[claim]
			ending = ending && !has[claim]
			switch chance := random.IntN(10); {
			case chance == 0:
				boot, now, has = fmt.Sprint("boot", random.Uint64()), "former", map[string]bool{}
			case chance < 5 && !ending:
				p, err := reopened().Join(claim, "mode X", sharedStep(t, claim, now))
				if err != nil {
					break
				}
				var before params
				check.Must(t, json.Unmarshal(p.Step.Params, &before))
				if now, has[claim] = "mode X", true; before.Before != "former" {
					t.Fatalf("round %d: %s joined: the former mode is %q", round, claim, before.Before)
				}
			default:
				has[claim] = false
				change := restorepoint.Change{Claim: claim, Kind: sharedKind, Target: target}
				err := restorepoint.Undo(reopened(), change, func(before *params) error {
					now = before.Before
					return nil
				})
				if err == nil {
					delete(has, claim)
				}
			}
			for one, held := range has {
				if held && now != "mode X" {
					t.Fatalf("round %d: %s has the device, and it is in %q", round, one, now)
				}
			}
		}
		in = fault.New()
		for _, claim := range claims {
			if restored := undo(t, reopened(), claim); restored != "" {
				now = restored
			}
		}
		if points, err := reopened().List(); err != nil || len(points) > 0 || now != "former" {
			t.Fatalf("round %d: the device is in %q at the end, %+v, %v", round, now, points, err)
		}
	}
}

// TestListedSharers: claims in a point of the release before, which has no marks, end and are joined. Each has its mark then.
func TestListedSharers(t *testing.T) {
	const listed = `{"version":2,"bootID":"boot1","step":{"kind":"gpu.compute-mode","target":"0000:16:00.0","params":{"Before":"former"}},` +
		`"setting":"mode X","sharers":[` +
		`{"claim":"a","step":{"kind":"gpu.compute-mode","target":"0000:16:00.0","params":{"Claim":"a","Before":"former"}}},` +
		`{"claim":"b","step":{"kind":"gpu.compute-mode","target":"0000:16:00.0","params":{"Claim":"b","Before":"mode X"}}}]}` + "\n"
	for n := 0; n <= 16; n++ { // 0: no operation fails
		dir := filepath.Join(t.TempDir(), "points")
		whole := open(t, dir, "boot1")
		check.Must(t, os.WriteFile(filepath.Join(dir, "gpu.compute-mode_0000:16:00.0.json"), []byte(listed), 0o600))
		if p, ok, err := whole.Find(sharedKind, target); err != nil || !ok || !cmp.Equal(p.Claims(), []string{"a", "b"}) {
			t.Fatalf("%+v, %v, %v", p, ok, err)
		}
		s := whole
		if n > 0 {
			s = restorepoint.Open(fault.New(fault.Fail(n, syscall.EIO)).FS(disk.OS{}), dir, "boot1")
		}
		first, second, third := "a", "b", "c"
		if n%2 == 1 {
			first, second, third = "b", "a", "c"
		}
		if err := s.End(first, sharedKind, target); err != nil {
			check.Must(t, whole.End(first, sharedKind, target))
		}
		_, err := whole.Join(third, "mode X", sharedStep(t, third, "mode X"))
		check.Must(t, err)
		if got := undo(t, whole, third) + undo(t, whole, first); got != "" {
			t.Errorf("operation %d failed: %q was restored, and %s has the device", n, got, second)
		}
		in := fault.New(fault.Full(1))
		if got := undo(t, restorepoint.Open(in.FS(disk.OS{}), dir, "boot1"), second); got != "former" {
			t.Errorf("operation %d failed: restored %q", n, got)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("operation %d failed: left %v, %v", n, left, err)
		}
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

// TestReleaseBefore: the release before reads a shared point, ends a claim of it and adds one; it passes over the other files. What it then
// wrote holds, whatever marks there are.
func TestReleaseBefore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	s := open(t, dir, "boot1")
	for _, claim := range []string{"a", "b"} {
		_, err := s.Join(claim, "mode X", sharedStep(t, claim, "former"))
		check.Must(t, err)
	}
	before := releaseBefore{dir: dir}
	p := before.read(t)
	if diff := cmp.Diff([]string{"a", "b"}, p.claims()); diff != "" || p.Version != 2 {
		t.Errorf("version %d (-want +got):\n%s", p.Version, diff)
	}
	p.Sharers = append(p.Sharers[1:], restorepoint.Sharer{Claim: "c", Step: sharedStep(t, "c", "mode X")})
	before.write(t, p)
	if p, ok, err := s.Find(sharedKind, target); err != nil || !ok || !cmp.Equal(p.Claims(), []string{"b", "c"}) {
		t.Errorf("%+v, %v, %v", p, ok, err)
	}
	if got := undo(t, s, "a") + undo(t, s, "b"); got != "" {
		t.Errorf("restored %q, and c has the device", got)
	}
	if p := before.read(t); !cmp.Equal(p.claims(), []string{"c"}) {
		t.Errorf("the release before would see %v", p.claims())
	}
	if got := undo(t, s, "c"); got != "former" {
		t.Errorf("restored %q", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	// It gives the last claim back and leaves the mark, which is gone with the next claim.
	_, err := s.Join("a", "mode X", sharedStep(t, "a", "former"))
	check.Must(t, errors.Join(err, os.Remove(filepath.Join(dir, "gpu.compute-mode_0000:16:00.0.json"))))
	_, err = s.Join("b", "mode Y", sharedStep(t, "b", "former"))
	check.Must(t, err)
	if marks, err := filepath.Glob(filepath.Join(dir, ".lock_*")); err != nil || len(marks) != 1 || !strings.HasSuffix(marks[0], "_b") {
		t.Errorf("marks %v, %v", marks, err)
	}
}

// releaseBefore reads and writes shared points as the release before does: it knows no marks, and takes every file for a point whose name
// does not begin with .lock_.
type releaseBefore struct{ dir string }

type pointBefore struct {
	Version int                   `json:"version"`
	BootID  string                `json:"bootID"`
	Step    step.Step             `json:"step"`
	Setting string                `json:"setting,omitempty"`
	Sharers []restorepoint.Sharer `json:"sharers,omitempty"`
}

func (p pointBefore) claims() (all []string) {
	for _, one := range p.Sharers {
		all = append(all, one.Claim)
	}
	return all
}

func (r releaseBefore) read(t *testing.T) (p pointBefore) {
	t.Helper()
	entries, err := os.ReadDir(r.dir)
	check.Must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".lock_") {
			continue
		}
		if want := "gpu.compute-mode_0000:16:00.0.json"; e.Name() != want {
			t.Errorf("file %s, want %s alone", e.Name(), want)
		}
		text, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		check.Must(t, errors.Join(err, json.Unmarshal(text, &p)))
	}
	return p
}

func (r releaseBefore) write(t *testing.T, p pointBefore) {
	t.Helper()
	text, err := json.Marshal(p)
	check.Must(t, errors.Join(err, os.WriteFile(filepath.Join(r.dir, "gpu.compute-mode_0000:16:00.0.json"), text, 0o600)))
}

// TestSharedDisk: an operation on the disk that fails is told, and the point is as before or as after. A second try ends well.
func TestSharedDisk(t *testing.T) {
	for n := 1; n <= 8; n++ {
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

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
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

const kind, target = "pci.bind", "0000:16:00.0"

func stepOf(t testing.TB, target, before string) step.Step {
	t.Helper()
	s, err := step.New(kind, target, before)
	check.Must(t, err)
	return s
}

func open(t testing.TB, dir, boot string) *restorepoint.Store {
	t.Helper()
	s := restorepoint.Open(disk.OS{}, dir, boot)
	check.Must(t, s.Make())
	check.Must(t, s.Make()) // twice
	return s
}

// TestLife: the first values that a claim found are kept until it ends, and no other claim gets the device meanwhile.
func TestLife(t *testing.T) {
	const owner, other = "uid-1", "uid-2"
	dir := filepath.Join(t.TempDir(), "state", "points")
	s := open(t, dir, "boot1")
	first, err := s.Begin(owner, stepOf(t, target, "nvidia"))
	check.Must(t, err)
	again, err := s.Begin(owner, stepOf(t, target, "vfio-pci"))
	check.Must(t, err)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the second Begin (-first +second):\n%s", diff)
	}
	if _, err := s.Begin(other, stepOf(t, target, "x")); !errors.Is(err, restorepoint.ErrHeld) || strings.Contains(err.Error(), owner) {
		t.Errorf("another claim: %v", err)
	}
	if err := s.Check(other, kind, target); !errors.Is(err, restorepoint.ErrHeld) {
		t.Errorf("check for another claim: %v", err)
	}
	check.Must(t, s.Check(owner, kind, target))
	check.Must(t, s.Check(other, kind, "0000:16:00.1"))
	check.Must(t, s.End(other, kind, target)) // leaves it
	if _, mine, err := s.Mine(other, kind, target); mine || err != nil {
		t.Errorf("another claim's: %v, %v", mine, err)
	}
	// The next process reads the same.
	s = open(t, dir, "boot1")
	if p, mine, err := s.Mine(owner, kind, target); !mine || err != nil || !cmp.Equal(p, first) {
		t.Errorf("%+v, %v, %v", p, mine, err)
	}
	if points, err := s.List(); err != nil || len(points) != 1 {
		t.Errorf("listed %v, %v", points, err)
	}
	check.Must(t, s.End(owner, kind, target))
	check.Must(t, s.End(owner, kind, target))
	if points, err := s.List(); err != nil || len(points) != 0 {
		t.Errorf("listed %v, %v", points, err)
	}
}

// TestReboot: a restore point of an earlier boot holds nothing, restores nothing, and goes with the next one's end.
func TestReboot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	_, err := open(t, dir, "boot1").Begin("a", stepOf(t, target, "nvidia"))
	check.Must(t, err)
	s := open(t, dir, "boot2")
	if _, mine, err := s.Mine("a", kind, target); mine || err != nil {
		t.Errorf("mine: %v, %v", mine, err)
	}
	if points, err := s.List(); err != nil || len(points) != 0 {
		t.Errorf("listed %v, %v", points, err)
	}
	check.Must(t, s.Check("b", kind, target))
	p, err := s.Begin("b", stepOf(t, target, "nouveau"))
	check.Must(t, err)
	if p.Claim != "b" || string(p.Step.Params) != `"nouveau"` || p.BootID != s.BootID() {
		t.Errorf("%+v", p)
	}
	_, err = open(t, dir, "boot1").Begin("a", stepOf(t, "0000:99:00.0", "x"))
	check.Must(t, err)
	check.Must(t, s.End("anybody", kind, "0000:99:00.0"))
	if _, err := os.Stat(filepath.Join(dir, "pci.bind_0000:99:00.0.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the restore point of an earlier boot is there: %v", err)
	}
}

// TestDamage: what cannot be read is never taken for nothing.
func TestDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	s := open(t, dir, "boot1")
	name := filepath.Join(dir, "pci.bind_0000:16:00.0.json")
	for _, content := range []string{"", "{", "null", `{"version":2,"claim":"a","bootID":"boot1"}`} {
		check.Must(t, os.WriteFile(name, []byte(content), 0o600))
		_, beginErr := s.Begin("a", stepOf(t, target, "x"))
		_, _, mineErr := s.Mine("a", kind, target)
		_, listErr := s.List()
		for _, err := range []error{beginErr, mineErr, listErr, s.Check("a", kind, target), s.End("a", kind, target)} {
			if err == nil || !strings.Contains(err.Error(), "by hand") {
				t.Errorf("%q: %v, want it to say what helps", content, err)
			}
		}
	}
	for _, bad := range []string{"", "../x", "a/b", ".hidden", "a b"} {
		if _, err := s.Begin("a", step.Step{Kind: kind, Target: bad}); err == nil {
			t.Errorf("target %q is accepted", bad)
		}
		if _, _, err := s.Find(bad, target); err == nil {
			t.Errorf("kind %q is accepted", bad)
		}
	}
	if points, err := restorepoint.Open(disk.OS{}, filepath.Join(dir, "none"), "boot1").List(); points != nil || err != nil {
		t.Errorf("without a directory: %v, %v", points, err)
	}
}

// TestDisk: an operation that fails is told, whichever it is, and the next try succeeds.
func TestDisk(t *testing.T) {
	for n := 1; n <= 8; n++ {
		dir := filepath.Join(t.TempDir(), "points")
		check.Must(t, os.Mkdir(dir, 0o700))
		in := fault.New(fault.Fail(n, syscall.EIO))
		s := restorepoint.Open(in.FS(disk.OS{}), dir, "boot1")
		_, err := s.Begin("a", stepOf(t, target, "nvidia"))
		if err == nil {
			err = s.End("a", kind, target)
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d fails: %v\n%s", n, err, in.Log())
		}
		in.Set()
		_, err = s.Begin("a", stepOf(t, target, "nvidia"))
		check.Must(t, errors.Join(err, s.End("a", kind, target)))
	}
}

// TestUnreadableBesideOthers: the points of other files are listed, and what is wrong is said of its own target only.
func TestUnreadableBesideOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	s := open(t, dir, "boot1")
	_, err := s.Begin("a", stepOf(t, target, "nvidia"))
	check.Must(t, err)
	bad := filepath.Join(dir, "pci.bind_0000:99:00.0.json")
	check.Must(t, os.WriteFile(bad, []byte("{"), 0o600))
	points, err := s.List()
	if len(points) != 1 || points[0].Step.Target != target {
		t.Errorf("listed %+v", points)
	}
	for of, want := range map[string]bool{target: false, "0000:99:00.0": true} {
		about := restorepoint.About(err, func(target string) bool { return target == of })
		if said := about != nil && strings.Contains(about.Error(), bad); said != want {
			t.Errorf("of %s: %v", of, about)
		}
	}
	all := errors.New("no directory")
	if err := restorepoint.About(all, func(string) bool { return false }); !errors.Is(err, all) {
		t.Errorf("of any: %v", err)
	}
}

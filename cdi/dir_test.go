// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/device"
)

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "run", "cdi"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ensure(t *testing.T, d *Dir, edits device.Edits) Spec {
	t.Helper()
	spec, err := Common(edits)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func names(t *testing.T, d *Dir) []string {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// identity is what changes when a file is written again.
func identity(t *testing.T, path string) string {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(stat.Ino, stat.Ctim)
}

func TestEnsureWritesOnce(t *testing.T) {
	d := open(t)
	spec := ensure(t, d, cases()["nvidia"])
	path := filepath.Join(d.path, spec.File)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != specMode {
		t.Errorf("mode %v, want %v: the runtime may run as another user", info.Mode(), os.FileMode(specMode))
	}
	before, dir := identity(t, path), identity(t, d.path)
	ensure(t, d, cases()["nvidia"])
	if after := identity(t, path); after != before {
		t.Error("the file was written again: the runtime reads the whole directory after each change")
	}
	if after := identity(t, d.path); after != dir {
		t.Error("the directory was changed")
	}
	if diff := cmp.Diff([]string{spec.File}, names(t, d)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestEnsureRepairs(t *testing.T) {
	tests := map[string]func(d *Dir, path string) error{
		"wiped directory": func(d *Dir, _ string) error { return os.RemoveAll(d.path) },
		"removed file":    func(_ *Dir, path string) error { return os.Remove(path) },
		"truncated file":  func(_ *Dir, path string) error { return os.Truncate(path, 7) },
		"empty file":      func(_ *Dir, path string) error { return os.Truncate(path, 0) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			spec := ensure(t, d, cases()["nvidia"])
			path := filepath.Join(d.path, spec.File)
			if err := damage(d, path); err != nil {
				t.Fatal(err)
			}
			ensure(t, d, cases()["nvidia"])
			if got, err := os.ReadFile(path); err != nil || string(got) != string(spec.Content) {
				t.Errorf("content %q, %v", got, err)
			}
			if !d.Has(spec.Device) {
				t.Error("not there")
			}
		})
	}
}

func TestEnsureFails(t *testing.T) {
	d := open(t)
	spec, err := Common(cases()["nvidia"])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(d.path, spec.File, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(spec); err == nil {
		t.Error("wrote over a directory")
	}
	if diff := cmp.Diff([]string{spec.File}, names(t, d)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestHas(t *testing.T) {
	d := open(t)
	spec := ensure(t, d, cases()["nvidia"])
	tests := map[string]bool{
		spec.Device: true, "fettle.dev/common=0": false, "not a name": false, "fettle.dev/claim=" + spec.Device[len(CommonKind)+1:]: false,
	}
	for name, want := range tests {
		if got := d.Has(name); got != want {
			t.Errorf("Has(%q) = %v, want %v", name, got, want)
		}
	}
}

// TestSweep removes what is Fettle's and not wanted, and nothing else.
func TestSweep(t *testing.T) {
	d := open(t)
	kept, gone := ensure(t, d, cases()["nvidia"]), ensure(t, d, cases()["mount"])
	foreign := []string{
		"nvidia.com-gpu.json", "k8s.gpu.nvidia.com-claim_1.json", "fettle.dev-common.yaml", "fettle.dev_metadata_1_gpu.json",
		"fettle.device-common-1.json", ".nvidia.com-tmp",
	}
	for _, name := range append(foreign, tmpPrefix+"123", tmpPrefix+"123.json") {
		if err := os.WriteFile(filepath.Join(d.path, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := d.Sweep(map[string]bool{kept.Device: true, "fettle.dev/common=unwritten": true})
	if err != nil || removed != 1 {
		t.Errorf("removed %d, %v, want 1", removed, err)
	}
	if d.Has(gone.Device) || !d.Has(kept.Device) {
		t.Errorf("files %v", names(t, d))
	}
	for _, name := range foreign {
		if _, err := os.Stat(filepath.Join(d.path, name)); err != nil {
			t.Errorf("another's file: %v", err)
		}
	}
	if got := len(names(t, d)); got != len(foreign)+1 {
		t.Errorf("files %v", names(t, d))
	}
	if _, err := d.Sweep(map[string]bool{"not a name": true}); err == nil || !d.Has(kept.Device) {
		t.Errorf("error %v: a name that cannot be read may be any file's, so nothing is removed", err)
	}
	if removed, err := d.Sweep(nil); err != nil || removed != 1 {
		t.Errorf("removed %d, %v", removed, err)
	}
	if err := os.RemoveAll(d.path); err != nil {
		t.Fatal(err)
	}
	if removed, err := d.Sweep(nil); err != nil || removed != 0 {
		t.Errorf("without a directory: removed %d, %v", removed, err)
	}
}

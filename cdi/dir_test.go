// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(disk.OS{}, filepath.Join(t.TempDir(), "run", "cdi"))
	check.Must(t, err)
	return d
}

func ensure(t *testing.T, d *Dir, edits container.Edits) Spec {
	t.Helper()
	spec, err := testNames().Common(edits)
	check.Must(t, err)
	check.Must(t, d.Ensure(spec))
	return spec
}

func names(t *testing.T, d *Dir) []string {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	check.Must(t, err)
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
	check.Must(t, syscall.Stat(path, &stat))
	return fmt.Sprint(stat.Ino, stat.Ctim)
}

func TestEnsureWritesOnce(t *testing.T) {
	d := open(t)
	spec := ensure(t, d, cases()["nvidia"])
	path := filepath.Join(d.path, spec.File)
	info, err := os.Stat(path)
	check.Must(t, err)
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
		"other content":   func(_ *Dir, path string) error { return os.WriteFile(path, []byte("{}"), 0o600) },
		"link elsewhere": func(d *Dir, path string) error {
			return errors.Join(os.Remove(path), os.Symlink(filepath.Join(d.path, "missing", "x"), path))
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			spec := ensure(t, d, cases()["nvidia"])
			path := filepath.Join(d.path, spec.File)
			check.Must(t, damage(d, path))
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
	spec, err := testNames().Common(cases()["nvidia"])
	check.Must(t, err)
	check.Must(t, os.MkdirAll(filepath.Join(d.path, spec.File, "sub"), 0o755))
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

// put makes files that are not this package's.
func put(t *testing.T, d *Dir, names ...string) {
	t.Helper()
	for _, name := range names {
		check.Must(t, os.WriteFile(filepath.Join(d.path, name), []byte("{}"), 0o600))
	}
}

// foreign are the files of others, some of them named almost like Fettle's.
func foreign() []string {
	return []string{
		"nvidia.com-gpu.json", "k8s.gpu.nvidia.com-claim_1.json", "fettle.dev-common.yaml", "fettle.dev_metadata_1_gpu.json",
		"fettle.device-common-1.json", ".nvidia.com-tmp", ".tmp-nvidia.com-gpu.json-00000001", "spec.1.tmp",
	}
}

// TestUnwanted lists what is Fettle's and not wanted, and nothing else.
func TestUnwanted(t *testing.T) {
	d := open(t)
	kept, gone := ensure(t, d, cases()["nvidia"]), ensure(t, d, cases()["mount"])
	cutOff := ".tmp-" + kept.File + "-00000001"
	put(t, d, foreign()...)
	put(t, d, "fettle.dev-claim-u1.json", cutOff, "fettle-shown-gpu-x.json", ".tmp-fettle-shown-gpu-x.json-00000001")
	got, err := d.Unwanted(func(file string) bool { return file == kept.File })
	check.Must(t, err)
	want := []string{".tmp-fettle-shown-gpu-x.json-00000001", cutOff, "fettle-shown-gpu-x.json", "fettle.dev-claim-u1.json", gone.File}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unwanted (-want +got):\n%s", diff)
	}
	all, err := d.Unwanted(nil)
	check.Must(t, err)
	if want := append(want, kept.File); !slices.Equal(slices.Sorted(slices.Values(want)), all) {
		t.Errorf("where nothing is wanted: %v, want %v", all, want)
	}
	check.Must(t, d.Sweep(got))
	check.Must(t, d.Sweep(got)) // again
	if want := slices.Sorted(slices.Values(append(foreign(), kept.File))); !slices.Equal(want, names(t, d)) {
		t.Errorf("after the sweep: %v, want %v", names(t, d), want)
	}
	check.Must(t, os.RemoveAll(d.path))
	if got, err := d.Unwanted(nil); err != nil || len(got) > 0 {
		t.Errorf("without a directory: %v, %v", got, err)
	}
	check.Must(t, d.Sweep([]string{kept.File}))
}

func TestFiles(t *testing.T) {
	d := open(t)
	spec := ensure(t, d, cases()["nvidia"])
	put(t, d, "nvidia.com-gpu.json")
	got, err := d.Files()
	check.Must(t, err)
	if diff := cmp.Diff(map[string]bool{spec.File: true, "nvidia.com-gpu.json": true}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	check.Must(t, os.RemoveAll(d.path))
	if got, err := d.Files(); err != nil || len(got) > 0 {
		t.Errorf("without a directory: %v, %v", got, err)
	}
	check.Must(t, os.WriteFile(d.path, nil, 0o600))
	if _, err := d.Files(); err == nil {
		t.Error("listed a file")
	}
	if _, err := d.Unwanted(nil); err == nil {
		t.Error("swept a file")
	}
}

func TestFileOf(t *testing.T) {
	for name, want := range map[string]string{
		"fettle.dev/common=x1": "fettle.dev-common-x1.json", "": "", "fettle.dev/common": "", "x1": "", "fettle.dev/../x=y": "",
	} {
		if got := FileOf(name); got != want {
			t.Errorf("FileOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestEveryWriteFails: where a disk has no room or cannot be written, the runtime sees the old content or the new, never a part, and
// the error says what it is about.
func TestEveryWriteFails(t *testing.T) {
	spec, err := testNames().Common(cases()["both"])
	check.Must(t, err)
	_, hash, _ := strings.Cut(spec.Device, "=")
	for name, arrange := range map[string]func(d *Dir, path string) error{
		"new":     func(*Dir, string) error { return nil },
		"damaged": func(_ *Dir, path string) error { return os.WriteFile(path, []byte("old"), 0o600) },
		"wiped":   func(d *Dir, _ string) error { return os.RemoveAll(filepath.Dir(d.path)) },
	} {
		for n := 1; ; n++ {
			reached := false
			for _, f := range []fault.Fault{
				fault.Fail(n, syscall.ENOSPC), fault.Fail(n, syscall.EROFS), fault.Short(n), fault.Full(n), fault.ReadOnly(n),
			} {
				d := open(t)
				path := filepath.Join(d.path, spec.File)
				check.Must(t, arrange(d, path))
				in := fault.New(f)
				err := (&Dir{fs: in.FS(disk.OS{}), path: d.path}).Ensure(spec)
				disturbed := slices.ContainsFunc(in.Log(), func(op fault.Op) bool { return op.Fault != "" })
				reached = reached || disturbed
				if (err != nil) != disturbed || err != nil && !strings.Contains(err.Error(), "CDI directory") {
					t.Errorf("%s, %s at %d: error %v, want one that says where", name, f.Do, n, err)
				}
				if err != nil && strings.Contains(err.Error(), hash) {
					t.Errorf("%s, %s at %d: tenants read the name in %v", name, f.Do, n, err)
				}
				checkWhole(t, d, path, spec)
				check.Must(t, d.Ensure(spec))
				if got, err := os.ReadFile(path); err != nil || string(got) != string(spec.Content) {
					t.Errorf("%s, %s at %d: in the end %q, %v", name, f.Do, n, got, err)
				}
			}
			if !reached {
				t.Logf("%s: %d operations", name, n-1)
				break
			}
		}
	}
}

// checkWhole wants the old file, the new one or none, and nothing else that a runtime reads.
func checkWhole(t *testing.T, d *Dir, path string, spec Spec) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err == nil && string(got) != "old" && string(got) != string(spec.Content) {
		t.Errorf("the runtime sees %q", got)
	}
	files, err := d.Files()
	check.Must(t, err)
	delete(files, spec.File)
	for name := range files {
		if ext := filepath.Ext(name); ext == ".json" || ext == ".yaml" {
			t.Errorf("the runtime reads %s", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/sim"
)

func TestExpand(t *testing.T) {
	m, err := sim.Parse([]byte(`dir mnt/ssd0
char dev/nvidia0 195:0
unreadable sys/devices/a/fault
symlink sys/class/a ../devices/a
-- sys/devices/a/vendor --
0x10de
`))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "made", "here")
	notes, err := m.Expand(dir, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sys/class/a/vendor")); err != nil || string(got) != "0x10de\n" {
		t.Errorf("vendor through the link = %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "mnt/ssd0")); err != nil || !info.IsDir() {
		t.Errorf("mnt/ssd0 = %v, %v, want a directory", info, err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "sys/devices/a/fault")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("reading the unreadable file: %v, want %v", err, syscall.ELOOP)
	}
	checkNode(t, filepath.Join(dir, "dev/nvidia0"), "195:0", notes)

	if _, err := m.Expand(dir, sim.Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second expansion: %v, want %v", err, fs.ErrExist)
	}
}

// checkNode wants the node, or a note why there is none.
func checkNode(t *testing.T, name, want string, notes []string) {
	t.Helper()
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if len(notes) != 1 || !strings.Contains(notes[0], want+" not made") {
			t.Errorf("notes %q, want one that says that node %s was not made", notes, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 || info.Mode().Perm() != 0o666 {
		t.Fatalf("mode %v, want a character device of mode 0666", info.Mode())
	}
	if got := (sim.Number{Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev)}).String(); got != want {
		t.Errorf("device number %s, want %s", got, want)
	}
}

// A link that stood in the directory before must not lead the writing out of it.
func TestExpandStaysInside(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "sys")); err != nil {
		t.Fatal(err)
	}
	m := &sim.Machine{Entries: []sim.Entry{{Path: "sys/a", Kind: sim.File}}}
	if _, err := m.Expand(dir, sim.Options{}); err == nil {
		t.Error("expanded through a link that leads out of the directory")
	}
	if _, err := os.Lstat(filepath.Join(outside, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made outside: %v", err)
	}
}

// Every machine expands, and its links resolve, but for the ones that are meant not to.
func TestMachines(t *testing.T) {
	want := []string{
		"broken-accel: sys/class/accel/accel0", "broken-dangling-link: sys/bus/pci/devices/0000:83:00.0",
		"broken-dangling-link: sys/class/drm/card3",
		"broken-dangling-link: sys/class/drm/renderD131",
	}
	var got []string
	for _, file := range machineFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		m, dir := parseMachine(t, name), t.TempDir()
		if _, err := m.Expand(dir, sim.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.Entries {
			if e.Kind != sim.Symlink {
				continue
			}
			if _, err := root.Stat(e.Path); err != nil {
				got = append(got, name+": "+e.Path)
			}
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dangling links (-want +got):\n%s", diff)
	}
}

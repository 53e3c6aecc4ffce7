// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// load is LoadMachine in this repository.
func load(t *testing.T, names ...string) *sim.Machine {
	t.Helper()
	root, err := Repository()
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Root: root}, io.Discard).LoadMachine(names...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMergedMachines(t *testing.T) {
	for _, test := range []struct {
		machines []string
		want     map[string]int
	}{
		{machines: []string{"8xh100-sxm", "4xlocalssd"}, want: map[string]int{"nvidia": 8}},
		{machines: []string{"8xmi300x", "2xintel-gpu", "2xa100-2xn6000"}, want: map[string]int{"amd": 8, "intel": 4, "nvidia": 2}},
	} {
		m, err := load(t, test.machines...).Openable()
		if err != nil {
			t.Errorf("%v: %v", test.machines, err)
			continue
		}
		h := New(Config{State: t.TempDir()}, io.Discard)
		if _, err := m.Expand(h.MachineDir("node1"), sim.Options{}); err != nil {
			t.Fatal(err)
		}
		tree, err := sysfs.Open(h.MachineDir("node1"))
		if err != nil {
			t.Fatal(err)
		}
		inventory := discover.Discover(t.Context(), tree, discover.Options{})
		if err := tree.Close(); err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, d := range inventory.Devices {
			got[*d.Attributes["vendor"].StringValue]++
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v: devices by vendor (-want +got):\n%s\nproblems: %v", test.machines, diff, inventory.Problems)
		}
	}
}

// TestReplaceTree replaces a machine while somebody holds the directories that the chart mounts.
func TestReplaceTree(t *testing.T) {
	to := t.TempDir()
	for _, path := range []string{"sys/bus/old", "dev/nvidia0", "proc/driver/nvidia/version", "mnt/disks/ssd0/left", "etc/old"} {
		write(t, filepath.Join(to, path), "old")
	}
	write(t, filepath.Join(to, "proc/devices"), "a longer old file")
	var held []os.FileInfo
	paths := []string{"sys", "dev", "proc/driver", "proc/devices", "mnt/disks"}
	for _, path := range paths {
		held = append(held, stat(t, filepath.Join(to, path)))
	}
	from := filepath.Join(to, stagingPrefix+"1")
	write(t, filepath.Join(from, "sys/bus/new"), "new")
	write(t, filepath.Join(from, "proc/devices"), "new")

	if err := replaceTree(from, to); err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		if !os.SameFile(held[i], stat(t, filepath.Join(to, path))) {
			t.Errorf("%s is another file now", path)
		}
	}
	if err := os.RemoveAll(from); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(to, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files = append(files, path[len(to)+1:]+" "+string(data))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"proc/devices new", "sys/bus/new new"}, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

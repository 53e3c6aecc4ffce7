// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/claim"
)

func TestSelftest(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr strings.Builder
	if code := selftest([]string{"--devices", dir}, nil, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "nothing") {
		t.Errorf("without a device: exit status %d, %s", code, stderr.String())
	}
	stdout.Reset()
	look := []string{"PATH=/bin", claim.NoNodeVariable + "FPGA_0=admin-access"}
	code := selftest([]string{"--devices", dir}, look, &stdout, &stderr)
	if code != 0 || !strings.HasPrefix(stdout.String(), claim.NoNodeVariable+"FPGA_0 is set") {
		t.Errorf("with admin access to a region: exit status %d, %s%s", code, stdout.String(), stderr.String())
	}
	if code := selftest([]string{"--nope"}, nil, &stdout, &stderr); code != 2 {
		t.Errorf("wrong flag: exit status %d", code)
	}
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	node := func(path string, major, minor uint32) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
			t.Skipf("device nodes cannot be made here: %v", err)
		}
	}
	node("null", 1, 3)     // every container has it
	node("pts/0", 136, 99) // likewise
	node("dri/renderD128", 1, 5)
	stdout.Reset()
	mounts := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(mounts, []byte(mountsOfAll+"1 1 0:1 / /usr/local/fettle/lib/libx.so ro - ext4 - rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := selftest([]string{"--devices", dir, "--mounts", mounts}, nil, &stdout, &stderr); code != 0 {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
	if want := "opened " + filepath.Join(dir, "dri/renderD128") + "\n"; stdout.String() != want {
		t.Errorf("stdout %q, want %q", stdout.String(), want)
	}
	node("broken", 4095, 9999)
	if code := selftest([]string{"--devices", dir}, nil, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "broken") {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

const mountsOfAll = `1 1 0:1 / / rw - overlay overlay rw
1 1 0:1 / /proc rw - proc proc rw
1 1 0:1 / /dev/pts rw - devpts devpts rw
1 1 0:1 / /etc/resolv.conf rw - ext4 - rw
1 1 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw
`

// TestMissingPreset: a container without a file of its node is told of, and NVIDIA's devices as what no image can help with.
func TestMissingPreset(t *testing.T) {
	for name, test := range map[string]struct {
		mounts string
		nodes  []string
		want   string
	}{
		"given":            {mountsOfAll + "1 1 0:1 / /opt/site ro - ext4 - rw\n", []string{"/dev/nvidia0"}, ""},
		"nvidia":           {mountsOfAll, []string{"/dev/nvidiactl", "/dev/nvidia0"}, "which no image can bring"},
		"control node":     {mountsOfAll, []string{"/dev/nvidiactl"}, "images must bring"},
		"another vendor":   {mountsOfAll, []string{"/dev/dri/renderD128"}, "images must bring"},
		"a name like /dev": {mountsOfAll + "1 1 0:1 / /devices rw - ext4 - rw\n", nil, ""},
	} {
		path := filepath.Join(t.TempDir(), "mountinfo")
		if err := os.WriteFile(path, []byte(test.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		note, err := missingPreset(path, test.nodes)
		if err != nil || !strings.Contains(note, test.want) || (note == "") != (test.want == "") {
			t.Errorf("%s: %q, %v; want %q", name, note, err, test.want)
		}
	}
	if _, err := missingPreset("/nonexistent", nil); err == nil {
		t.Error("read what is not there")
	}
}

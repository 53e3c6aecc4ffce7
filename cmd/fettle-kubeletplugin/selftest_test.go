// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSelftest(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr strings.Builder
	if code := selftest([]string{"--devices", dir}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "nothing") {
		t.Errorf("without a device: exit status %d, %s", code, stderr.String())
	}
	if code := selftest([]string{"--nope"}, &stdout, &stderr); code != 2 {
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
	if code := selftest([]string{"--devices", dir}, &stdout, &stderr); code != 0 {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
	if want := "opened " + filepath.Join(dir, "dri/renderD128") + "\n"; stdout.String() != want {
		t.Errorf("stdout %q, want %q", stdout.String(), want)
	}
	node("broken", 4095, 9999)
	if code := selftest([]string{"--devices", dir}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "broken") {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// buildProbe compiles the stand-in for ldconfig.
func buildProbe(t *testing.T) string {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	command := exec.Command("go", "build", "-o", probe, "./testdata/probe")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, output)
	}
	return probe
}

// TestConfined: what runs in ldconfig's place has no right and reaches nothing, even where the container's root has a writable
// volume of the host, the real proc, and programs.
func TestConfined(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces and mounts need root")
	}
	host := t.TempDir()
	root := filepath.Join(host, "bundle", "rootfs")
	for _, dir := range []string{"proc", "volume", "etc", "run"} {
		check.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	check.Must(t, os.Mkdir(filepath.Join(host, "volume"), 0o777))
	check.Must(t, os.WriteFile(filepath.Join(host, "host-secret"), nil, 0o600))
	if canary := elffile.Canary(); canary != nil {
		check.Must(t, os.WriteFile(filepath.Join(root, "canary"), canary, 0o755))
	}
	for target, source := range map[string]string{"volume": filepath.Join(host, "volume"), "proc": "/proc"} {
		target = filepath.Join(root, target)
		check.Must(t, unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""))
		t.Cleanup(func() { check.Must(t, unix.Unmount(target, unix.MNT_DETACH)) })
	}
	program, err := OpenProgram([]string{buildProbe(t)})
	check.Must(t, err)
	defer program.Close()
	dir, err := os.Open(root)
	check.Must(t, err)
	defer dir.Close()
	got, err := program.run(t.Context(), dir, []byte("/lib\n"))
	check.Must(t, err)
	want := []string{
		"args ldconfig -X -i -f conf -C cache",
		"environment 0",
		"CapInh: 0000000000000000",
		"CapPrm: 0000000000000000",
		"CapEff: 0000000000000000",
		"CapBnd: 0000000000000000",
		"CapAmb: 0000000000000000",
		"NoNewPrivs: 1",
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(got)), "\n")); diff != "" {
		t.Errorf("what a program could do (-want +got):\n%s", diff)
	}
	for _, left := range []string{filepath.Join(host, "volume", "probe-was-here"), filepath.Join(root, elffile.Mark)} {
		if _, err := os.Lstat(left); err == nil {
			t.Errorf("%s is there", left)
		}
	}
}

// TestTimeLimit: a program that does not end is ended.
func TestTimeLimit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces and mounts need root")
	}
	forever := filepath.Join(t.TempDir(), "forever")
	loop := elffile.File{Program: []byte{0xeb, 0xfe}} // x86-64: jump to itself
	if elffile.Canary() == nil {
		loop.Program = []byte{0, 0, 0, 0x14} // aarch64: the same
	}
	check.Must(t, os.WriteFile(forever, loop.Bytes(), 0o755))
	program, err := OpenProgram([]string{forever})
	check.Must(t, err)
	defer program.Close()
	dir, err := os.Open(t.TempDir())
	check.Must(t, err)
	defer dir.Close()
	check.GrowingLimit(t, "the program begins", func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := program.run(ctx, dir, nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v, want one about the deadline", err)
		}
		return strings.Contains(err.Error(), "it was ended: context deadline exceeded")
	})
}

// TestProgramRefused: only a static program of this machine is run, and a pipe in its place is not waited for.
func TestProgramRefused(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o700))
	for name, content := range map[string]string{
		"script":  "#!/bin/sh\n",
		"dynamic": string(elffile.File{Interpreter: "/lib64/ld-linux-x86-64.so.2"}.Bytes()),
		"other":   string(elffile.File{Machine: 22, Program: []byte{0}}.Bytes()),
		"empty":   "",
	} {
		check.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	for name, want := range map[string]string{
		"script": "ldconfig.real", "dynamic": "want a static program", "other": "is for EM_S390", "empty": "ELF", "pipe": "want a regular file",
		"absent": "no such file",
	} {
		program, err := OpenProgram([]string{filepath.Join(dir, name)})
		if err == nil {
			program.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
	t.Chdir(filepath.Dir("/proc/self/exe"))
	if program, err := OpenProgram([]string{"exe"}); err == nil || !strings.Contains(err.Error(), "want an absolute path") {
		t.Errorf("a relative path: %+v, %v", program, err)
	}
	program, err := OpenProgram([]string{filepath.Join(dir, "script"), "/proc/self/exe"})
	if err == nil {
		defer program.Close()
		if _, err := program.file.WriteAt([]byte{0}, 0); err == nil {
			t.Error("the copy can be written to")
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/test/check"
)

const asProgram = "TEST_AS_MPS"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestProgram: the confined program runs the stand-in in a driver root. It and its daemons have the rights that they need and no others.
func TestProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: chroot and setuid")
	}
	base, err := os.MkdirTemp("", "mps") //nolint:usetesting // short: sockets have short paths
	check.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	check.Must(t, os.Chmod(base, 0o755))
	root, dir := filepath.Join(base, "driver"), filepath.Join(base, "own")
	check.Must(t, errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.Mkdir(dir, 0o700)))
	bin := filepath.Join(root, "usr/bin") + "/"
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../test/mpssim/nvidia-cuda-mps-control")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "--driver-root="+root, "--dir="+dir)
	program.Env = []string{asProgram + "=1"}
	var stderr strings.Builder
	program.Stderr = &stderr
	check.Must(t, program.Start())
	r := mps.Runner{Client: mps.Client{Dir: dir}, Wait: check.Patience}
	d := &mps.Daemon{ID: "uid-1", Devices: []string{"GPU-00000001-0000-4000-8000-000000000000"}, ActiveThreadPercentage: 30}
	check.Eventually(t, "the program is there", func() bool {
		err := r.Ensure(t.Context(), d)
		if err != nil && !errors.Is(err, mps.ErrNoSupervisor) {
			t.Fatalf("%v; it said %s", err, stderr.String())
		}
		return err == nil
	})
	pid, err := os.ReadFile(filepath.Join(mps.HostDir(root), d.ID, mps.PipeName, "nvidia-cuda-mps-control.pid"))
	check.Must(t, err)
	checkRights(t, fmt.Sprint(program.Process.Pid), confine.MPS().Capabilities)
	daemon := strings.TrimSpace(string(pid))
	checkRights(t, daemon, confine.MPSDaemon{}.Capabilities())
	environment, err := os.ReadFile("/proc/" + daemon + "/environ")
	check.Must(t, err)
	if text := string(environment); strings.Contains(text, asProgram) || !strings.Contains(text, "CUDA_VISIBLE_DEVICES="+d.Devices[0]) {
		t.Errorf("the daemon has the environment %q", text)
	}
	if err := errors.Join(program.Process.Signal(syscall.SIGTERM), program.Wait()); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if _, err := os.Stat("/proc/" + daemon); err == nil {
		t.Error("the daemon outlives the program")
	}
}

func checkRights(t *testing.T, pid string, most confine.Capabilities) {
	t.Helper()
	status, err := os.Open("/proc/" + pid + "/status")
	check.Must(t, err)
	defer status.Close()
	s, err := confine.ParseState(status)
	check.Must(t, err)
	if !most.Has(s.Permitted|s.Effective|s.Inheritable|s.Ambient) || !s.NoNewPrivileges || s.Seccomp != 2 {
		t.Errorf("process %s has %+v, want at most %s", pid, s, most)
	}
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
	}{{[]string{"version"}, 0}, {[]string{"-h"}, 0}, {[]string{"--unknown"}, 2}, {[]string{"more"}, 2}} {
		if code := run(t.Context(), tc.args, io.Discard, io.Discard); code != tc.code {
			t.Errorf("%q: status %d, want %d", tc.args, code, tc.code)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// program is the confined program, with the stand-in in a driver root.
type program struct {
	*exec.Cmd

	root   string
	runner mps.Runner
	stderr strings.Builder
}

func startProgram(t *testing.T) *program {
	t.Helper()
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
	p := &program{
		Cmd:  exec.CommandContext(t.Context(), os.Args[0], "--driver-root="+root, "--dir="+dir),
		root: root, runner: mps.Runner{Client: mps.Client{Dir: dir}, Wait: check.Patience},
	}
	p.Env, p.Stderr = []string{asProgram + "=1"}, &p.stderr
	check.Must(t, p.Start())
	return p
}

// run has a daemon run.
func (p *program) run(t *testing.T) *mps.Daemon {
	t.Helper()
	d := &mps.Daemon{ID: "uid-1", Devices: []string{"GPU-00000001-0000-4000-8000-000000000000"}, ActiveThreadPercentage: 30}
	check.Eventually(t, "the program is there", func() bool {
		err := p.runner.Ensure(t.Context(), &mps.Params{Daemon: *d})
		if err != nil && !errors.Is(err, mps.ErrNoSupervisor) {
			t.Fatalf("%v; it said %s", err, p.stderr.String())
		}
		return err == nil
	})
	return d
}

func (p *program) end(t *testing.T) {
	t.Helper()
	if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
		t.Errorf("%v: %s", err, p.stderr.String())
	}
}

// TestUsersDirectories: directories that users of a container made and closed to others keep neither its daemon from ending, nor a daemon
// that died from being started again.
func TestUsersDirectories(t *testing.T) {
	p := startProgram(t)
	d := p.run(t)
	pipes := filepath.Join(mps.HostDir(p.root), d.ID, mps.PipeName)
	pid := filepath.Join(pipes, "nvidia-cuda-mps-control.pid")
	leave := func() {
		t.Helper()
		for name, mode := range map[string]os.FileMode{"open": 0o755, "closed": 0o700, "nothing": 0, "sticky": 0o777 | os.ModeSticky} {
			dir := filepath.Join(pipes, name)
			file := filepath.Join(dir, "file")
			check.Must(t, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, nil, 0o600), os.Chown(file, 1000, 1000),
				os.Chown(dir, 1000, 1000), os.Chmod(dir, mode)))
		}
	}
	leave()
	old, err := os.ReadFile(pid)
	check.Must(t, err)
	number, err := strconv.Atoi(strings.TrimSpace(string(old)))
	check.Must(t, err)
	check.Must(t, syscall.Kill(number, syscall.SIGKILL))
	check.Eventually(t, "the daemon runs again", func() bool {
		now, err := os.ReadFile(pid)
		return err == nil && string(now) != string(old) && p.runner.Ensure(t.Context(), &mps.Params{Daemon: *d}) == nil
	})
	leave()
	check.Must(t, p.runner.Client.Stop(t.Context(), d.ID))
	if _, err := os.Lstat(filepath.Dir(pipes)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon's directory: %v, want none", err)
	}
	p.end(t)
}

// TestProgram: the confined program runs the stand-in in a driver root. It and its daemons have the rights that they need and no others.
func TestProgram(t *testing.T) {
	p := startProgram(t)
	d := p.run(t)
	pid, err := os.ReadFile(filepath.Join(mps.HostDir(p.root), d.ID, mps.PipeName, "nvidia-cuda-mps-control.pid"))
	check.Must(t, err)
	checkRights(t, fmt.Sprint(p.Process.Pid), confine.MPS().Capabilities)
	daemon := strings.TrimSpace(string(pid))
	checkRights(t, daemon, confine.MPSDaemon{}.Capabilities())
	environment, err := os.ReadFile("/proc/" + daemon + "/environ")
	check.Must(t, err)
	if text := string(environment); strings.Contains(text, asProgram) || !strings.Contains(text, "CUDA_VISIBLE_DEVICES="+d.Devices[0]) {
		t.Errorf("the daemon has the environment %q", text)
	}
	p.end(t)
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

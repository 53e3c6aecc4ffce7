// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/kubeletclaims"
	"github.com/fettle-dev/fettle/test/check"
)

const asProgram = "TEST_AS_CLAIMS"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestProgram: the program answers while it has no right left, and ends when it is asked to.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "state"), filepath.Join(dir, "s")
	program := exec.CommandContext(t.Context(), os.Args[0], "--kubelet-state="+file, "--socket="+socket)
	program.Env = []string{asProgram + "=1"}
	var stderr strings.Builder
	program.Stderr = &stderr
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	const state = `{"Data":"{\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[]}","Checksum":%d}`
	var err error
	check.Eventually(t, "the program answers", func() bool {
		if _, err = kubeletclaims.Read(socket); err == nil || strings.Contains(err.Error(), "checksum") {
			return true
		}
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "no such file") {
			if err := os.WriteFile(file, fmt.Appendf(nil, state, 1), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return false
	})
	if err == nil || !strings.Contains(err.Error(), "checksum 1, expected") && !strings.Contains(err.Error(), "expected 1") {
		t.Errorf("answered %v; it said %s", err, stderr.String())
	}
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", program.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	s, err := confine.ParseState(status)
	if err != nil || s.Permitted|s.Effective|s.Inheritable|s.Ambient != 0 || !s.NoNewPrivileges || s.Seccomp != 2 {
		t.Errorf("it has %+v, %v", s, err)
	}
	if err := errors.Join(program.Process.Signal(syscall.SIGTERM), program.Wait()); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
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

// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/smi"
)

// TestMain makes this test's binary play nvidia-smi where it has that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nvidia-smi" {
		syscall.Exit(smi.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// installed is the program below a root, of which the machine's file is in one of the two places.
func installed(t *testing.T, writable bool) (nvmlsim.Machine, func(args ...string) (int, string)) {
	t.Helper()
	root := t.TempDir()
	file := nvmlsim.DefaultFile(root)
	if writable {
		file = nvmlsim.DefaultFile(filepath.Join(root, nvmlsim.WritableDir))
	}
	program := filepath.Join(root, "usr/bin/nvidia-smi")
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(program)} {
		check.Must(t, os.MkdirAll(dir, 0o755))
	}
	self, err := os.ReadFile("/proc/self/exe")
	check.Must(t, err)
	check.Must(t, os.WriteFile(program, self, 0o755))
	m, err := nvmlsim.New(file, "", nvmlsim.H100, nvmlsim.H100)
	check.Must(t, err)
	return m, func(args ...string) (int, string) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		output, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(output)
	}
}

// TestNvidiaSmi: the stand-in answers as the tool does, and changes only the card that it is told.
func TestNvidiaSmi(t *testing.T) {
	const second = "GPU-00000002-0000-4000-8000-000000000000"
	m, run := installed(t, true)
	for _, tc := range []struct {
		args   string
		status int
		says   string
	}{
		{"--help", 0, "NVIDIA System Management Interface -- v580.95.05\n"},
		{"--version", 0, "NVIDIA-SMI version  : 580.95.05\n"},
		{"compute-policy -i " + second + " --set-timeslice 2", 0, "value Medium for GPU 1"},
		{"compute-policy -i " + second + " --set-timeslice 4", 2, "Invalid"},
		{"compute-policy -i " + second + " --set-timeslice x", 2, "Invalid"},
		{"compute-policy -i GPU-other --set-timeslice 1", 6, "No devices were found"},
		{"compute-policy --set-timeslice 1", 2, "Usage"},
		{"-pm 1", 2, "Invalid"},
	} {
		if status, said := run(strings.Fields(tc.args)...); status != tc.status || !strings.Contains(said, tc.says) {
			t.Errorf("%s: exit %d, %s, want %d, %s", tc.args, status, said, tc.status, tc.says)
		}
	}
	s, err := m.Look()
	check.Must(t, err)
	if s.Cards[0].TimeSlice != 0 || s.Cards[1].TimeSlice != 2 {
		t.Errorf("time slices %d and %d", s.Cards[0].TimeSlice, s.Cards[1].TimeSlice)
	}
	check.Must(t, m.Reset(1, 1))
	if s, err := m.Look(); err != nil || s.Cards[1].TimeSlice != 0 {
		t.Errorf("after a reset: %d, %v", s.Cards[1].TimeSlice, err)
	}
	check.Must(t, os.Remove(m.File))
	if status, said := run("--version"); status != 12 || !strings.Contains(said, "no simulated machine") {
		t.Errorf("without a machine: exit %d, %s", status, said)
	}
	_, other := installed(t, false)
	if status, said := other("--version"); status != 0 {
		t.Errorf("with the machine in the root itself: exit %d, %s", status, said)
	}
}

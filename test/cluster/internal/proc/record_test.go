// SPDX-License-Identifier: Apache-2.0

package proc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/cluster/internal/proc"
)

func TestRunning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids", "x.json")
	if pid, err := proc.Running(file); pid != 0 || err != nil {
		t.Errorf("no record: got %d, %v", pid, err)
	}
	if err := proc.Save(file, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if pid, err := proc.Running(file); pid != os.Getpid() || err != nil {
		t.Errorf("own process: got %d, %v", pid, err)
	}
	other := `{"pid": 1, "start": "12345678901", "boot": "another"}`
	if err := os.WriteFile(file, []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, err := proc.Running(file); pid != 0 || err != nil {
		t.Errorf("process ID used again: got %d, %v", pid, err)
	}
}

func TestStop(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sleep.json")
	if err := proc.Save(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	// The process stays a zombie until Wait; that must count as stopped.
	if err := proc.Stop(file, syscall.SIGTERM, 5*time.Second); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

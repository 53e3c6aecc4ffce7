// SPDX-License-Identifier: Apache-2.0

package proc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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

// execsLeft is how often the process that TestSaveDuringExec watches executes itself once more.
const execsLeft = "FETTLE_TEST_EXECS_LEFT"

func TestMain(m *testing.M) {
	left, err := strconv.Atoi(os.Getenv(execsLeft))
	if err != nil {
		os.Exit(m.Run())
	}
	if left > 0 {
		ended := make(chan error)
		go func() {
			runtime.LockOSThread() // one that is not the first, which main has
			ended <- execAgain(left - 1)
		}()
		if err := <-ended; err != nil {
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// TestSaveDuringExec: a daemon is recorded while it executes its program, in whichever thread. It counts as running all the while.
func TestSaveDuringExec(t *testing.T) {
	const execs = 200
	file := filepath.Join(t.TempDir(), "x.json")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), execsLeft+"="+strconv.Itoa(execs))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var wrong error
	for {
		err := proc.Save(file, cmd.Process.Pid)
		if err == nil && wrong != nil {
			t.Fatalf("not recorded while it ran: %v", wrong)
		}
		wrong = err // which is right from the moment on in which it ended, and stays so
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

func execAgain(left int) error {
	if err := os.Setenv(execsLeft, strconv.Itoa(left)); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
)

// childMode makes this test binary play the child.
const childMode = "FETTLE_TEST_NVML_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(playChild(mode))
	}
	os.Exit(m.Run())
}

func playChild(mode string) int {
	if strings.HasPrefix(mode, "watch") {
		return playWatch(mode)
	}
	if strings.HasPrefix(mode, "mig") {
		return playMIG(mode)
	}
	switch mode {
	case "healthy":
		_ = json.NewEncoder(os.Stdout).Encode(sample())
	case "arguments":
		_ = json.NewEncoder(os.Stdout).Encode(nvml.Report{DriverVersion: strings.Join(os.Args[1:], " ")})
	case "driver":
		d := sampleDriver()
		d.Env = []string{"ARGS=" + strings.Join(os.Args[1:], " ")}
		_ = json.NewEncoder(os.Stdout).Encode(d)
	case "no driver":
		fmt.Fprintln(os.Stderr, "looked below /driver")
		return nvml.ExitNoDriver
	case "no library":
		fmt.Fprintln(os.Stderr, "looked everywhere")
		return nvml.ExitNoLibrary
	case "fails":
		fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 10000)+"driver/library version mismatch")
		return 1
	case "crashes":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // Go would survive SIGSEGV long enough to explain it.
		check.Hang()
	case "garbage":
		fmt.Println("\x00NVML\xff")
	case "silent":
	case "huge":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<16)); err != nil {
				return 1
			}
		}
	case "hangs":
		if file := os.Getenv("PIDFILE"); file != "" {
			_ = os.WriteFile(file, nil, 0o600)
		}
		check.Hang()
	case "hangs with a child": // which keeps the pipes open
		sleeper := exec.Command("/proc/self/exe")
		sleeper.Env = []string{childMode + "=hangs"}
		sleeper.Stdout, sleeper.Stderr = os.Stdout, os.Stderr
		_ = sleeper.Start()
		_ = os.WriteFile(os.Getenv("PIDFILE"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0o600)
		check.Hang()
	}
	return 0
}

func command(t *testing.T, mode string, timeout time.Duration) nvml.Command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(childMode, mode)
	return nvml.Command{Path: self, Timeout: timeout, State: []string{os.TempDir()}}
}

func TestQuery(t *testing.T) {
	got, err := nvml.Query(t.Context(), command(t, "healthy", time.Minute))
	if diff := cmp.Diff(sample(), got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestQueryPassesItsConfiguration(t *testing.T) {
	c := command(t, "arguments", time.Minute)
	c.DriverRoot, c.LibraryPath = "/driver", "/lib/x.so"
	got, err := nvml.Query(t.Context(), c)
	if want := "-driver-root /driver -library /lib/x.so"; got.DriverVersion != want || err != nil {
		t.Errorf("got %q, %v; want %q", got.DriverVersion, err, want)
	}
}

func TestQueryFails(t *testing.T) {
	for mode, want := range map[string]string{
		"no library": "looked everywhere",
		"fails":      "driver/library version mismatch",
		"crashes":    "signal: killed",
		"garbage":    "decode report: invalid character",
		"silent":     "decode report: EOF",
		"huge":       "printed more than 1048576 bytes",
	} {
		t.Run(mode, func(t *testing.T) {
			_, err := nvml.Query(t.Context(), command(t, mode, time.Minute))
			if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 4<<10 {
				t.Errorf("got %.500v, want %q", err, want)
			}
			if errors.Is(err, nvml.ErrNoLibrary) != (mode == "no library") {
				t.Errorf("errors.Is(%v, ErrNoLibrary) is wrong", err)
			}
		})
	}
}

func TestQueryHangs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("PIDFILE", file)
	check.GrowingLimit(t, "a child that hangs", func(limit time.Duration) bool {
		_, err := nvml.Query(t.Context(), command(t, "hangs", limit))
		if _, early := os.Stat(file); early != nil {
			return false
		}
		check.WantErr(t, err, context.DeadlineExceeded, "did not answer in time")
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := nvml.Query(ctx, command(t, "hangs", time.Minute)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
}

// TestQueryKillsTheGroup has the child start another that hangs: both must be gone.
func TestQueryKillsTheGroup(t *testing.T) {
	c := command(t, "hangs with a child", 5*time.Minute)
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("PIDFILE", file)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := nvml.Query(ctx, c)
		ended <- err
	}()
	var pid string
	check.Eventually(t, "both processes run", func() bool {
		text, err := os.ReadFile(file)
		pid = string(text)
		return err == nil && alive(t, pid)
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	check.Eventually(t, "the grandchild is gone", func() bool { return !alive(t, pid) })
}

// alive reports whether a process runs; a zombie that nobody has reaped does not.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}

func TestQueryWithoutBinary(t *testing.T) {
	_, err := nvml.Query(t.Context(), nvml.Command{Path: "/nowhere/fettle-nvml"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want absent", err)
	}
}

// TestProber asks while another question hangs: the second gets an answer at once, and afterwards all is well again.
func TestProber(t *testing.T) {
	prober := nvml.NewProber(command(t, "hangs", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := nvml.ErrStuck
		for errors.Is(err, nvml.ErrStuck) && ctx.Err() == nil { // The questions below may be the first to get through.
			_, err = prober.Query(ctx)
		}
		done <- err
	}()
	check.Eventually(t, "a question finds the child stuck", func() bool {
		_, err := prober.Query(check.Passed(t))
		return errors.Is(err, nvml.ErrStuck)
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	t.Setenv(childMode, "healthy")
	check.Eventually(t, "an answer", func() bool {
		_, err := prober.Query(t.Context())
		return err == nil
	})
}

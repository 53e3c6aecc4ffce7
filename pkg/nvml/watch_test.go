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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/check"
)

// playWatch is a watching child. It writes its process id into a file where one is asked for.
func playWatch(mode string) int {
	if file := os.Getenv("PIDFILE"); file != "" && mode != "watch parent" {
		_ = os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600)
		_ = os.Rename(file+".new", file)
	}
	out := json.NewEncoder(os.Stdout)
	beat := func() { _ = out.Encode(heartbeat()) }
	switch mode {
	case "watch":
		for {
			beat()
			_ = out.Encode(event("00000000:1B:00.0", 79))
		}
	case "watch crashes":
		beat()
		fmt.Fprintln(os.Stderr, "Unable to determine the device handle")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		check.Hang()
	case "watch ends":
		beat()
	case "watch hangs":
		beat()
		check.Hang()
	case "watch mute":
		check.Hang()
	case "watch garbage":
		beat()
		fmt.Println("Segmentation fault")
		check.Hang()
	case "watch long":
		_, _ = os.Stdout.WriteString(strings.Repeat("x", 2<<20))
		check.Hang()
	case "watch no library":
		fmt.Fprintln(os.Stderr, "looked everywhere")
		return nvml.ExitNoLibrary
	case "watch arguments":
		fmt.Fprintln(os.Stderr, strings.Join(os.Args[1:], " "))
		return 1
	case "watch parent": // a plugin that is killed
		self, _ := os.Executable()
		_ = os.Setenv(childMode, "watch hangs") // one that prints would notice that nobody reads
		w := nvml.Watcher{Command: nvml.Command{Path: self, State: []string{os.TempDir()}}, Interval: time.Hour}
		w.Run(context.Background(), func(nvml.Message) {}, func(error) {})
	}
	return 0
}

func watcher(t *testing.T, mode string) *nvml.Watcher {
	t.Helper()
	return &nvml.Watcher{Command: command(t, mode, time.Minute), Interval: time.Minute, FirstPause: time.Millisecond}
}

// watched runs a watcher until stop says so of what was received and failed so far.
func watched(t *testing.T, w *nvml.Watcher, stop func(received []nvml.Message, failed []error) bool) ([]nvml.Message, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var received []nvml.Message
	var failed []error
	look := func() {
		if stop(received, failed) {
			cancel()
		}
	}
	w.Run(ctx, func(m nvml.Message) {
		mu.Lock()
		defer mu.Unlock()
		received = append(received, m)
		look()
	}, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, err)
		look()
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("it never happened: received %d messages, failed %v", len(received), failed)
	}
	return received, failed
}

func TestWatcherReceives(t *testing.T) {
	received, failed := watched(t, watcher(t, "watch"), func(m []nvml.Message, _ []error) bool { return len(m) == 4 })
	want := []nvml.Message{heartbeat(), event("00000000:1B:00.0", 79), heartbeat(), event("00000000:1B:00.0", 79)}
	if diff := cmp.Diff(want, received); diff != "" || len(failed) > 0 {
		t.Errorf("failed %v\n%s", failed, diff)
	}
}

// TestWatcherStartsAgain: whatever a child does wrong, the next one is started and the reason is told.
func TestWatcherStartsAgain(t *testing.T) {
	for mode, tc := range map[string]struct {
		want string
		// beats are what each child says before.
		beats int
	}{
		"watch crashes":    {"signal: killed: Unable to determine the device handle", 1},
		"watch ends":       {"ended", 1},
		"watch hangs":      {"hung: no heartbeat in time", 1},
		"watch garbage":    {"decode message: invalid character", 1},
		"watch long":       {"printed a line of more than 1048576 bytes", 0},
		"watch no library": {nvml.ErrNoLibrary.Error() + ": looked everywhere", 0},
		"watch arguments":  {"exit status 1: -driver-root /driver watch -interval 1m0s", 0},
	} {
		t.Run(mode, func(t *testing.T) {
			w := watcher(t, mode)
			w.Command.DriverRoot = "/driver"
			if mode == "watch hangs" {
				w.Interval = time.Millisecond // of which it misses all
			}
			received, failed := watched(t, w, func(_ []nvml.Message, failed []error) bool { return len(failed) == 2 })
			for _, err := range failed {
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("failed with %v, want %q", err, tc.want)
				}
				if errors.Is(err, nvml.ErrNoLibrary) != (mode == "watch no library") {
					t.Errorf("errors.Is(%v, ErrNoLibrary) is wrong", err)
				}
			}
			if len(received) != 2*tc.beats {
				t.Errorf("received %d messages, want %d", len(received), 2*tc.beats)
			}
		})
	}
}

func TestWatcherWithoutHeartbeat(t *testing.T) {
	w := watcher(t, "watch mute")
	// fragile: the child never says anything, so that no limit is too short
	w.Command.Timeout, w.Interval = time.Millisecond, time.Millisecond
	_, failed := watched(t, w, func(_ []nvml.Message, failed []error) bool { return len(failed) == 1 })
	if !strings.Contains(failed[0].Error(), "hung") {
		t.Errorf("failed with %v", failed[0])
	}
}

func TestWatcherWithoutBinary(t *testing.T) {
	w := &nvml.Watcher{Command: nvml.Command{Path: "/nowhere/fettle-nvml"}, Interval: time.Second, FirstPause: time.Millisecond}
	_, failed := watched(t, w, func(_ []nvml.Message, failed []error) bool { return len(failed) == 2 })
	if !errors.Is(failed[0], os.ErrNotExist) {
		t.Errorf("failed with %v, want absent", failed[0])
	}
}

// TestWatcherLeavesNobody: the child is gone when Run returned, and it can be run again.
func TestWatcherLeavesNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("PIDFILE", file)
	w := watcher(t, "watch hangs")
	for range 2 {
		watched(t, w, func(m []nvml.Message, _ []error) bool { return len(m) == 1 })
		pid, err := os.ReadFile(file)
		if err != nil || alive(t, string(pid)) {
			t.Errorf("process %s is still there (%v)", pid, err)
		}
	}
}

// TestWatcherDiesWithItsParent kills a whole plugin, which then cannot clean up.
func TestWatcherDiesWithItsParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), childMode+"=watch parent", "PIDFILE="+file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid string
	check.Eventually(t, "the child runs", func() bool {
		text, err := os.ReadFile(file)
		pid = string(text)
		return err == nil && alive(t, pid)
	})
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	check.Eventually(t, "the child is gone", func() bool { return !alive(t, pid) })
}

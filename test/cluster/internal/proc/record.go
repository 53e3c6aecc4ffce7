// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Record names a process for good: process IDs are used again, together with the start time they are not.
type Record struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat, in clock ticks since boot.
	Start string `json:"start"`
	// Boot is the machine's boot the ticks count from.
	Boot string `json:"boot"`
}

// Save records a running process in a file.
func Save(file string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	data, err := json.Marshal(Record{PID: pid, Start: start, Boot: bootID()})
	if err != nil {
		return fmt.Errorf("encode process record: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	return nil
}

// Running returns the recorded process if it still runs, else 0.
func Running(file string) (int, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read process record: %w", err)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return 0, fmt.Errorf("read process record %s: %w", file, err)
	}
	start, err := startTime(r.PID)
	if err != nil || start != r.Start || r.Boot != bootID() {
		return 0, nil //nolint:nilerr // a process that cannot be read is not running
	}
	return r.PID, nil
}

// Stop signals the recorded process and waits until it is gone.
func Stop(file string, sig syscall.Signal, limit time.Duration) error {
	pid, err := Running(file)
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if pid, err = Running(file); err != nil || pid == 0 {
			return err
		}
	}
	return fmt.Errorf("process %d still runs %s after %s; use --kill", pid, limit, sig)
}

// startTime fails for a zombie: it has ended, only its parent has not looked. One that has another thread lives: while that executes a
// program in its place, the process shows its first thread, which ended (de_thread in fs/exec.c).
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("read process %d: %w", pid, err)
	}
	// The command name before the last ")" may hold spaces; fields count from 3 after it: the state, the threads at 20, the start at 22.
	_, rest, _ := cutLast(string(data), ")")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1") {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

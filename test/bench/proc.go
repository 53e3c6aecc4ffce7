// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memory is what a process occupies, in MiB.
type memory struct {
	// resident is all, anon without pages of files, peak the most that resident ever was.
	resident, anon, peak float64
}

const kibiInMebi = 1 << 10

// readMemory reads /proc/PID/status (proc_pid_status(5)).
func readMemory(pid int) (memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	return parseMemory(string(status))
}

func parseMemory(status string) (memory, error) {
	found := map[string]float64{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if kib, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(kib), 64)
			if err != nil {
				return memory{}, fmt.Errorf("%s in the process's status: %w", name, err)
			}
			found[name] = n / kibiInMebi
		}
	}
	for _, name := range []string{"VmRSS", "RssAnon", "VmHWM"} {
		if _, ok := found[name]; !ok {
			return memory{}, fmt.Errorf("the kernel does not say %s in the process's status", name)
		}
	}
	return memory{resident: found["VmRSS"], anon: found["RssAnon"], peak: found["VmHWM"]}, nil
}

// cpuTime is what all threads of a process have used, those that ended included.
func cpuTime(pid int) (time.Duration, error) {
	// A clock's number is the complement of the process's, and the kind of clock (include/linux/posix-timers_types.h).
	const bits, scheduler = 3, 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<bits|scheduler), &used); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// threads are the thread ids of a process.
func threads(pid int) ([]string, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}

// watches says whether a process has an inotify watch on a directory, by /proc/PID/fdinfo (proc_pid_fdinfo(5)).
func watches(pid int, dir string) (bool, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	inode, err := inodeOf(info)
	if err != nil {
		return false, err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return false, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "inotify ") && strings.Contains(line, fmt.Sprintf(" ino:%x ", inode)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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

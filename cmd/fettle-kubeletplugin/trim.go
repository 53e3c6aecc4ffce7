// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program that only its start needed, which are most: the types of the whole Kubernetes API are
// registered then, and few are used later. They are unmapped and, for the kernel, the first to be reclaimed; a page that is needed
// after all is mapped again from the page cache.
func trim() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("give back memory: %w", err)
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("give back memory: %w", err)
	}
	for _, m := range programPages(string(maps), program) {
		// These pages belong to the file and are never written, so nothing is lost.
		if err := errors.Join(m.advise(unix.MADV_COLD), m.advise(unix.MADV_DONTNEED)); err != nil {
			return fmt.Errorf("give back memory: %w", err)
		}
	}
	return nil
}

type pageRange struct{ start, end uintptr }

// advise is madvise(2) for a range that is no memory of Go's.
func (m pageRange) advise(advice int) error {
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, uintptr(advice)); errno != 0 {
		return os.NewSyscallError("madvise", errno)
	}
	return nil
}

// programPages are the mappings of a program that cannot be written to, from the text of /proc/PID/maps (proc_pid_maps(5)).
func programPages(maps, program string) []pageRange {
	var out []pageRange
	for line := range strings.Lines(maps) {
		var m pageRange
		var access, offset, device, path string
		var inode uint64
		n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d %s", &m.start, &m.end, &access, &offset, &device, &inode, &path)
		if n == 7 && path == program && strings.HasPrefix(access, "r-") && m.start < m.end {
			out = append(out, m)
		}
	}
	return out
}

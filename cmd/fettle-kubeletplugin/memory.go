// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// tidyInterval is how often memory is given back. What is needed again after it costs the next call some hundred page faults.
const tidyInterval = 30 * time.Second

// keepTidy gives back, from now on, what a start or a burst of claims needed and nobody needs after it. A process that did not even have
// to collect garbage since the last time is left alone.
func keepTidy(ctx context.Context) {
	// Of what the start needed most is never used again: that is the first to leave the page cache. Later it is what calls need.
	advice := []int{unix.MADV_COLD, unix.MADV_DONTNEED}
	for last := uint64(0); ; {
		if collections() > last {
			debug.FreeOSMemory()
			if err := trim(advice...); err != nil {
				klog.FromContext(ctx).Error(err, "The process keeps memory that it does not need")
				return
			}
			last, advice = collections(), []int{unix.MADV_DONTNEED}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyInterval):
		}
	}
}

// collections is how often garbage was collected.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// trim gives the kernel advice (madvise(2)) on the pages of the program, few of which are needed again soon: the types of the whole
// Kubernetes API are registered at the start and hardly used later. With MADV_DONTNEED they are unmapped; what is needed after all is
// mapped again from the page cache.
func trim(advice ...int) error {
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
		for _, one := range advice {
			if err := m.advise(one); err != nil {
				return fmt.Errorf("give back memory: %w", err)
			}
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

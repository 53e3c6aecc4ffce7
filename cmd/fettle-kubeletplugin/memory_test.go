// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestProgramPages(t *testing.T) {
	const maps = `00400000-01b8b000 r-xp 00000000 fe:00 42                         /fettle-kubeletplugin
01b8b000-036d0000 r--p 0178b000 fe:00 42                         /fettle-kubeletplugin
036d0000-0376b000 rw-p 032cf000 fe:00 42                         /fettle-kubeletplugin
0376b000-057b8000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--p 00000000 fe:00 43                 /lib/fettle-kubeletplugin
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]
nonsense
`
	want := []pageRange{{0x400000, 0x1b8b000}, {0x1b8b000, 0x36d0000}}
	if diff := cmp.Diff(want, programPages(maps, "/fettle-kubeletplugin"), cmp.AllowUnexported(pageRange{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTrim touches the whole program and sees that most of it is mapped no more; that the test ends shows that it can be again.
func TestTrim(t *testing.T) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range programPages(string(maps), program) {
		if err := m.advise(unix.MADV_POPULATE_READ); err != nil {
			t.Fatal(err)
		}
	}
	before := fileRSS(t)
	if err := trim(unix.MADV_COLD, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if after := fileRSS(t); after > before/2 {
		t.Errorf("%d KiB of files are mapped, before it were %d", after, before)
	}
}

// TestKeepTidy: memory is given back at the start, and then where garbage was collected meanwhile. The sleeps are of the bubble's clock and
// take no time.
func TestKeepTidy(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only on request
	synctest.Test(t, func(t *testing.T) {
		before := collections()
		go keepTidy(t.Context())
		synctest.Wait()
		started := collections()
		if started == before {
			t.Error("nothing was given back at the start")
		}
		time.Sleep(2 * tidyInterval)
		synctest.Wait()
		if now := collections(); now != started {
			t.Errorf("%d collections of an idle process", now-started)
		}
		runtime.GC()
		collected := collections()
		time.Sleep(tidyInterval)
		synctest.Wait()
		if collections() == collected {
			t.Error("nothing was given back after work")
		}
	})
}

// fileRSS is how much of files this process has mapped, in KiB.
func fileRSS(t *testing.T) (kib int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "RssFile:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// TestMount: the filesystem is there during the test and gone after it, also where the test unmounted it.
func TestMount(t *testing.T) {
	at := t.TempDir()
	on := func() uint64 {
		var s unix.Stat_t
		check.Must(t, unix.Stat(at, &s))
		return uint64(s.Dev) //nolint:unconvert // the types differ by architecture
	}
	before := on()
	for _, unmounts := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			check.Mount(t, at, check.Tmpfs("size=1m"))
			if on() == before {
				t.Error("nothing was mounted")
			}
			if unmounts {
				check.Must(t, unix.Unmount(at, 0))
			}
		})
		if on() != before {
			t.Fatal("it is mounted after the test")
		}
	}
}

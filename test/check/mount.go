// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a filesystem on a directory until the test is over, unless the test unmounts it before. Where nobody may mount the test is
// skipped; in CI it fails instead.
func Mount(t testing.TB, source, at, kind string, flags uintptr, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		unable(t, "only root may mount")
	}
	if err := unix.Mount(source, at, kind, flags, data); err != nil {
		unable(t, "this machine lets nobody mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
}

// unable skips the test, or fails it in CI.
func unable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

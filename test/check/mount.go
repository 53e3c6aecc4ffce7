// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Filesystem is what can be mounted (mount(2)).
type Filesystem struct {
	// Source is a device, or a directory for a bind mount. Type is the type of the file system.
	Source, Type string
	Flags        uintptr
	// Data are the options of the file system.
	Data string
}

// Tmpfs is an empty file system in memory with options: "size=1m".
func Tmpfs(data string) Filesystem { return Filesystem{Source: "test", Type: "tmpfs", Data: data} }

// Mount mounts a file system on a directory until the test is over, unless the test unmounts it before. Where nobody may mount the test is
// skipped; in CI it fails instead.
func Mount(t testing.TB, at string, f Filesystem) {
	t.Helper()
	if os.Geteuid() != 0 {
		unable(t, "only root may mount")
	}
	if err := unix.Mount(f.Source, at, f.Type, f.Flags, f.Data); err != nil {
		unable(t, "this machine lets nobody mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
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

// HangingMount mounts a file system on a directory whose server answers nothing: what asks it anything waits until the test is over, as
// for an NFS server that is away.
func HangingMount(t testing.TB, at string) {
	t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		unable(t, "no file system of a process: %v", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	Mount(t, at, Filesystem{Source: "hanging", Type: "fuse", Data: data})
	t.Cleanup(func() { Must(t, server.Close()) }) // before it is unmounted: whoever waits gets an error
}

// Ends fails the test unless a function returns.
func Ends(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	Eventually(t, what+" ends", Received(done))
}

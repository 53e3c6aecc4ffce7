// SPDX-License-Identifier: Apache-2.0

package fusetree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// TestChanges: what changes is seen at once, whatever the kernel had looked up, and whoever looks all the time.
func TestChanges(t *testing.T) {
	Need(t)
	dir, ctx := t.TempDir(), t.Context()
	var tree *Tree
	err := Mount(dir, "fusetree", "sys", func(ctx context.Context, made *Tree) {
		tree = made
		tree.Fixed(ctx, "sys/bus/driver", "-> a")
		tree.Fixed(ctx, "sys/bus/driver", "-> first") // nothing is mounted yet
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, group := make(chan struct{}), sync.WaitGroup{}
	t.Cleanup(func() {
		close(stop)
		group.Wait()
		if err := Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	bus := filepath.Join(dir, "bus")
	for range 3 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = os.ReadDir(bus)
					_, _ = os.ReadFile(filepath.Join(bus, "function/vendor"))
					_, _ = os.Stat(filepath.Join(bus, "not-there"))
				}
			}
		})
	}
	if to, err := os.Readlink(filepath.Join(bus, "driver")); err != nil || to != "first" {
		t.Fatalf("the link leads to %q, error %v", to, err)
	}
	for i := range 200 {
		want, vendor := strconv.Itoa(i), filepath.Join(bus, "function/vendor")
		tree.Fixed(ctx, "sys/bus/driver", "-> "+want)
		if to, err := os.Readlink(filepath.Join(bus, "driver")); err != nil || to != want {
			t.Fatalf("the link leads to %q, error %v, want %q", to, err, want)
		}
		written := make(chan string, 1)
		tree.Both(ctx, "sys/bus/function/vendor", func() string { return want }, func(s string) syscall.Errno {
			written <- s
			tree.Remove("sys/bus/function") // as a driver's unbind takes away the directory in which it was asked for
			return 0
		})
		if text, err := os.ReadFile(vendor); err != nil || string(text) != want {
			t.Fatalf("it reads %q, error %v, want %q", text, err, want)
		}
		if err := os.WriteFile(vendor, []byte(want), 0); err != nil {
			t.Fatal(err)
		}
		if got := <-written; got != want {
			t.Fatalf("%q was written, want %q", got, want)
		}
		if _, err := os.Stat(filepath.Dir(vendor)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the directory that went is there: %v", err)
		}
	}
}

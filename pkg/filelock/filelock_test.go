// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// opened opens the same file once more, which is another holder.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	check.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestRanges: two ranges exclude each other where they overlap and one is exclusive.
func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		name      string
		first     Range
		firstMode Mode
		then      Range
		thenMode  Mode
		want      bool
	}{
		{name: "same", first: Range{5, 1}, then: Range{5, 1}},
		{name: "beside", first: Range{5, 1}, then: Range{6, 1}, want: true},
		{name: "overlap", first: Range{5, 10}, then: Range{14, 1}},
		{name: "whole file", then: Range{1 << 40, 1}},
		{name: "within the whole file", first: Range{1 << 40, 1}},
		{name: "both shared", first: Range{5, 1}, firstMode: Shared, then: Range{5, 1}, thenMode: Shared, want: true},
		{name: "shared first", first: Range{5, 1}, firstMode: Shared, then: Range{5, 1}},
		{name: "shared then", first: Range{5, 1}, then: Range{5, 1}, thenMode: Shared},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			a, b := opened(t, path), opened(t, path)
			if got, err := tt.first.Try(a, tt.firstMode); err != nil || !got {
				t.Fatalf("a free range: %v, %v", got, err)
			}
			if got, err := tt.then.Try(b, tt.thenMode); err != nil || got != tt.want {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
			check.Must(t, tt.first.Unlock(a))
			if got, err := tt.then.Try(b, tt.thenMode); err != nil || !got {
				t.Errorf("after it was unlocked: %v, %v", got, err)
			}
			check.Must(t, b.Close())
			if got, err := tt.first.Try(a, Exclusive); err != nil || !got {
				t.Errorf("after the other file was closed: %v, %v", got, err)
			}
		})
	}
}

// TestKernel pins which calls of the kernel a lock stands for: the version before this one makes them at the same files.
func TestKernel(t *testing.T) {
	dir := t.TempDir()
	a, b := opened(t, filepath.Join(dir, "lock")), opened(t, filepath.Join(dir, "lock"))
	ofd := func(kind int16, start, length int64) error {
		return unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: start, Len: length})
	}
	got, err := Range{Start: 7, Len: 2}.Try(a, Exclusive)
	if err != nil || !got {
		t.Fatalf("got %v, %v", got, err)
	}
	for at, want := range map[int64]error{6: nil, 7: unix.EAGAIN, 8: unix.EAGAIN, 9: nil} {
		if err := ofd(unix.F_RDLCK, at, 1); !errors.Is(err, want) {
			t.Errorf("byte %d: %v, want %v", at, err, want)
		}
	}
	if err := unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("flock(2) beside a range: %v", err)
	}
	check.Must(t, unix.Flock(int(b.Fd()), unix.LOCK_UN))
	check.Must(t, Range{Start: 7, Len: 2}.Unlock(a))
	check.Must(t, ofd(unix.F_WRLCK, 0, 0))
	if got, err := TryFlock(a, Exclusive); err != nil || !got {
		t.Errorf("flock beside a range: %v, %v", got, err)
	}
	if err := unix.Flock(int(b.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("flock(2) beside flock: %v", err)
	}
}

// TestFlock on a directory and on a file that is only open for reading.
func TestFlock(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hook")
	check.Must(t, os.WriteFile(file, nil, 0o500))
	for _, path := range []string{dir, file} {
		var files []*os.File
		for range 3 {
			f, err := os.Open(path)
			check.Must(t, err)
			defer f.Close()
			files = append(files, f)
		}
		check.Must(t, Flock(files[0], Shared))
		check.Must(t, Flock(files[1], Shared))
		if got, err := TryFlock(files[2], Exclusive); err != nil || got {
			t.Errorf("%s: exclusive beside shared: %v, %v", path, got, err)
		}
		check.Must(t, errors.Join(files[0].Close(), files[1].Close()))
		if got, err := TryFlock(files[2], Exclusive); err != nil || !got {
			t.Errorf("%s: exclusive alone: %v, %v", path, got, err)
		}
	}
}

// TestWaitFlock: a waiter gets the lock when it is given up; one whose context ended first does not keep it.
func TestWaitFlock(t *testing.T) {
	dir := t.TempDir()
	open := func() *os.File {
		f, err := os.Open(dir)
		check.Must(t, err)
		return f
	}
	held := open()
	check.Must(t, WaitFlock(t.Context(), held, Exclusive))
	errTired := errors.New("tired")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTired)
	gaveUp := open()
	if err := WaitFlock(ctx, gaveUp, Exclusive); !errors.Is(err, ErrHeld) || !errors.Is(err, errTired) {
		t.Errorf("held: %v, want ErrHeld and the cause", err)
	}
	next, result := open(), make(chan error)
	go func() { result <- WaitFlock(t.Context(), next, Exclusive) }()
	check.Must(t, held.Close())
	check.Must(t, <-result)
	check.Must(t, next.Close())
	last := open()
	check.Must(t, WaitFlock(t.Context(), last, Exclusive))
	check.Must(t, last.Close())

	closed := open()
	check.Must(t, closed.Close())
	if err := WaitFlock(t.Context(), closed, Exclusive); err == nil || !strings.Contains(err.Error(), "lock "+dir) {
		t.Errorf("a closed file: %v, want an error that names it", err)
	}
}

// TestTryAt: what is locked is the file that the path names, and no link.
func TestTryAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Range{}.TryAt(path, Exclusive)
	if first == nil || err != nil {
		t.Fatalf("got %v, %v", first, err)
	}
	defer first.Close()
	if f, err := (Range{}).TryAt(path, Exclusive); f != nil || err != nil {
		t.Errorf("held: %v, %v, want neither", f, err)
	}
	check.Must(t, os.Rename(path, path+".old"))
	second, err := Range{}.TryAt(path, Exclusive)
	if second == nil || err != nil {
		t.Fatalf("another file of the name: %v, %v", second, err)
	}
	check.Must(t, second.Close())
	if at, err := isAt(first, path); at || err != nil {
		t.Errorf("the renamed file: %v, %v, want that the path names another", at, err)
	}
	check.Must(t, os.Remove(path))
	if at, err := isAt(first, path); at || err != nil {
		t.Errorf("the renamed file: %v, %v, want that the path names none", at, err)
	}
	check.Must(t, os.Symlink(path+".old", path))
	if f, err := (Range{}).TryAt(path, Exclusive); f != nil || !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v, %v", f, err)
	}
	if f, err := (Range{}).TryAt(filepath.Join(path+".none", "lock"), Exclusive); f != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v, %v", f, err)
	}
}

// TestTryAtWhileRemoved: of callers that remove the file while they hold it never two believe that they have it.
func TestTryAtWhileRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var group sync.WaitGroup
	var held sync.Mutex
	for range 4 {
		group.Go(func() {
			for range 200 {
				f, err := Range{}.TryAt(path, Exclusive)
				if err != nil {
					t.Error(err)
					return
				}
				if f == nil {
					continue
				}
				if !held.TryLock() {
					t.Error("two have it")
					return
				}
				held.Unlock()
				if err := errors.Join(os.Remove(path), f.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func TestRetry(t *testing.T) {
	errDisk, errTired := errors.New("disk"), errors.New("tired")
	for _, tt := range []struct {
		name   string
		try    func(n int) (bool, error)
		want   error
		waited bool
		took   time.Duration
	}{
		{name: "at once", try: func(int) (bool, error) { return true, nil }},
		{name: "fails", try: func(int) (bool, error) { return false, errDisk }, want: errDisk},
		{name: "fails later", try: func(n int) (bool, error) {
			if n < 2 {
				return false, nil
			}
			return false, errDisk
		}, want: errDisk, waited: true, took: time.Millisecond},
		{name: "after 1, 2, 4, 4 and 4 ms", try: func(n int) (bool, error) { return n > 5, nil }, waited: true, took: 15 * time.Millisecond},
		{name: "never", try: func(int) (bool, error) { return false, nil }, want: errTired, waited: true, took: time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errTired)
				defer cancel()
				begin, n := time.Now(), 0
				waited, err := Backoff{First: time.Millisecond, Longest: 4 * time.Millisecond}.Retry(ctx, func() (bool, error) {
					n++
					return tt.try(n)
				})
				if !errors.Is(err, tt.want) || errors.Is(err, ErrHeld) != errors.Is(tt.want, errTired) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				if took := time.Since(begin); waited != tt.waited || took != tt.took {
					t.Errorf("waited %v for %s, want %v for %s", waited, took, tt.waited, tt.took)
				}
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// everything does each operation once: those that are not reads have the numbers 1 to 12, the reads 1 to 5.
func everything(fsys disk.FS, dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	f, err := fsys.OpenFile(at("f"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("abcd"))
	err = errors.Join(err, f.Truncate(3), f.Chmod(0o640), f.Sync(), f.Datasync(), f.Close(),
		fsys.Mkdir(at("d"), 0o700), fsys.Symlink("target", at("l")), fsys.Rename(at("f"), at("d/f")),
		fsys.SyncDir(at("d")), fsys.Remove(at("l")), fsys.SyncDir(dir))
	again, openErr := fsys.OpenFile(at("d/f"), os.O_WRONLY, 0)
	if openErr == nil {
		openErr = again.Close()
	}
	_, readErr := fsys.ReadFile(at("d/f"))
	_, listErr := fsys.ReadDir(dir)
	_, statErr := fsys.Lstat(at("d"))
	_, linkErr := fsys.Readlink(at("d"))
	if !errors.Is(linkErr, syscall.EINVAL) {
		err = errors.Join(err, fmt.Errorf("readlink of a directory: %w", linkErr))
	}
	return errors.Join(err, openErr, readErr, listErr, statErr)
}

func TestNumbers(t *testing.T) {
	dir := t.TempDir()
	in := fault.New()
	check.Must(t, everything(in.FS(disk.OS{}), dir))
	var got []string
	for _, op := range in.Log() {
		path, err := filepath.Rel(dir, op.Path)
		check.Must(t, err)
		got = append(got, fmt.Sprintf("%d/%d %s %s %q", op.N, op.Sync, op.Kind, path, op.Data))
	}
	want := []string{
		`1/0 create f ""`, `2/0 write f "abcd"`, `3/0 truncate f ""`, `4/0 chmod f ""`, `5/1 sync f ""`, `6/2 datasync f ""`,
		`7/0 mkdir d ""`, `8/0 symlink l ""`, `9/0 rename f ""`, `10/3 syncdir d ""`, `11/0 remove l ""`, `12/4 syncdir . ""`,
		`1/0 open d/f ""`, `2/0 readfile d/f ""`, `3/0 readdir . ""`, `4/0 stat d ""`, `5/0 readlink d ""`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if log := in.Log(); log.Changes() != 12 || log.Reads() != 5 || len(log.Before(4)) != 3 || len(log.Before(13)) != 17 {
		t.Errorf("%d changes, %d reads, %d before the 4th, %d before the 13th",
			log.Changes(), log.Reads(), len(log.Before(4)), len(log.Before(13)))
	}
}

// TestQuick: the log is the same but for what cannot be synced.
func TestQuick(t *testing.T) {
	dir := t.TempDir()
	slow, quick := fault.New(), fault.New()
	quick.Quick = true
	check.Must(t, everything(slow.FS(disk.OS{}), dir))
	check.Must(t, os.RemoveAll(filepath.Join(dir, "d")))
	check.Must(t, everything(quick.FS(disk.OS{}), dir))
	if diff := cmp.Diff(slow.Log().String(), quick.Log().String()); diff != "" {
		t.Errorf("log (-slow +quick):\n%s", diff)
	}
	for name, in := range map[string]*fault.Injector{"slow": slow, "quick": quick} {
		if err := in.FS(disk.OS{}).SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: sync of what is not there: %v", name, err)
		}
	}
}

// TestFailEach makes each operation fail once: the caller sees the error as one of package os, and nothing was done.
func TestFailEach(t *testing.T) {
	for n := 1; n <= 12; n++ {
		dir := t.TempDir()
		in := fault.New(fault.Fail(n, syscall.EIO))
		err := everything(in.FS(disk.OS{}), dir)
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d: error %v, want EIO", n, err)
		}
		for _, op := range in.Log() {
			if failed := op.Fault == "fail"; failed != (op.N == n && !op.Kind.Read()) || failed && op.Done {
				t.Errorf("operation %d: %+v", n, op)
			}
		}
	}
	for n := 1; n <= 5; n++ {
		in := fault.New(fault.FailRead(n, syscall.EIO))
		if err := everything(in.FS(disk.OS{}), t.TempDir()); !errors.Is(err, syscall.EIO) {
			t.Errorf("read %d: error %v, want EIO", n, err)
		}
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	in := fault.New(fault.Fail(1, syscall.EROFS))
	_, err := in.FS(disk.OS{}).OpenFile(filepath.Join(dir, "f"), os.O_CREATE|os.O_WRONLY, 0o600)
	if pathErr, ok := errors.AsType[*fs.PathError](err); !ok || pathErr.Path != filepath.Join(dir, "f") || !errors.Is(err, syscall.EROFS) {
		t.Errorf("error %v, want a PathError with EROFS", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left %v (%v)", entries, err)
	}
}

func TestShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	in := fault.New(fault.Short(2))
	f, err := in.FS(disk.OS{}).OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	check.Must(t, err)
	n, err := f.Write([]byte("abcdef"))
	if n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d (%v), want 3 and ENOSPC", n, err)
	}
	check.Must(t, f.Close())
	if data, err := os.ReadFile(path); err != nil || string(data) != "abc" {
		t.Errorf("content %q (%v)", data, err)
	}
	if op := in.Log()[1]; !op.Done || string(op.Data) != "abc" {
		t.Errorf("logged %+v, want the half that was done", op)
	}
}

// TestFullAndReadOnly: they stay until they are lifted; a full disk can be tidied, a read-only one cannot.
func TestFullAndReadOnly(t *testing.T) {
	dir := t.TempDir()
	in := fault.New()
	fsys := in.FS(disk.OS{})
	f, err := fsys.OpenFile(filepath.Join(dir, "old"), os.O_CREATE|os.O_WRONLY, 0o600)
	check.Must(t, err)
	write := func() error { _, err := f.Write([]byte("ab")); return err }
	mkdir := func() error { return fsys.Mkdir(filepath.Join(dir, "d"), 0o700) }
	remove := func() error { return fsys.Remove(filepath.Join(dir, "d")) }
	open := func() error {
		f, err := fsys.OpenFile(filepath.Join(dir, "old"), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	check.Must(t, mkdir())
	in.Set(fault.Full(in.Log().Changes() + 1))
	for i, want := range []error{syscall.ENOSPC, syscall.ENOSPC, nil, syscall.ENOSPC, nil} {
		if got := []func() error{write, write, remove, mkdir, f.Sync}[i](); !errors.Is(got, want) {
			t.Errorf("full disk, operation %d: %v, want %v", i, got, want)
		}
	}
	in.Set()
	check.Must(t, errors.Join(write(), mkdir(), open()))
	in.Set(fault.ReadOnly(in.Log().Changes() + 1))
	for i, got := range []error{open(), write(), remove(), f.Sync(), open()} {
		if !errors.Is(got, syscall.EROFS) {
			t.Errorf("read-only disk, operation %d: %v", i, got)
		}
	}
	if err := in.Do("reset", func() error { return nil }); err != nil {
		t.Errorf("a device on a read-only disk: %v", err)
	}
	in.Set()
	check.Must(t, errors.Join(write(), remove(), f.Close()))
	if data, err := os.ReadFile(filepath.Join(dir, "old")); err != nil || string(data) != "aabab" {
		t.Errorf("content %q (%v), want a short write and two whole ones", data, err)
	}
}

func TestDo(t *testing.T) {
	done := 0
	in := fault.New(fault.Fail(1, syscall.ENODEV), fault.Lose(2, syscall.ETIMEDOUT), fault.Delay(3, 20*time.Millisecond))
	reset := func() error { return in.Do("reset gpu0", func() error { done++; return nil }) }
	if err := reset(); !errors.Is(err, syscall.ENODEV) || done != 0 {
		t.Errorf("failed: %v, done %d times", err, done)
	}
	if err := reset(); !errors.Is(err, syscall.ETIMEDOUT) || done != 1 {
		t.Errorf("lost: %v, done %d times", err, done)
	}
	start := time.Now()
	if err := reset(); err != nil || done != 2 || time.Since(start) < 20*time.Millisecond {
		t.Errorf("delayed: %v, done %d times after %v", err, done, time.Since(start))
	}
	want := "#1 effect reset gpu0 [fail]: reset gpu0: no such device\n#2 effect reset gpu0\n#3 effect reset gpu0\n"
	if diff := cmp.Diff(want, in.Log().String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// TestHooks: a hook sees each operation before and after, and one that blocks hangs only that operation.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	hung, release := make(chan struct{}), make(chan struct{})
	in := fault.New()
	in.Before = func(op fault.Op) error {
		if filepath.Base(op.Path) == "slow" {
			close(hung)
			<-release
		}
		if filepath.Base(op.Path) == "bad" {
			return syscall.EACCES
		}
		return nil
	}
	in.After = func(op fault.Op) error {
		if filepath.Base(op.Path) == "late" && op.Done {
			return syscall.EIO
		}
		return nil
	}
	fsys := in.FS(disk.OS{})
	slow := make(chan error)
	go func() { slow <- fsys.Mkdir(filepath.Join(dir, "slow"), 0o700) }()
	<-hung
	for name, want := range map[string]error{"good": nil, "bad": syscall.EACCES, "late": syscall.EIO} {
		if err := fsys.Mkdir(filepath.Join(dir, name), 0o700); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	close(release)
	check.Must(t, <-slow)
	entries, err := os.ReadDir(dir)
	check.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"good", "late", "slow"}, names); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
}

// slow gives others a moment to come in between, and counts those that did.
type slow struct {
	disk.OS
	within, most *atomic.Int32
}

func (s slow) Rename(from, to string) error {
	s.most.Store(max(s.most.Load(), s.within.Add(1)))
	defer s.within.Add(-1)
	time.Sleep(100 * time.Microsecond) // fragile: it only makes it likely that another comes, and nothing fails without
	return s.OS.Rename(from, to)
}

// TestConcurrent: numbers are unique, and the log replays to what is on the disk.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	in := fault.New()
	under := slow{within: new(atomic.Int32), most: new(atomic.Int32)}
	fsys := in.FS(under)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for n := range 20 {
				name := filepath.Join(dir, fmt.Sprint((g+n)%5))
				if err := disk.Replace(fsys, name, fmt.Append(nil, g, n), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	log := in.Log()
	seen := map[int]bool{}
	for _, op := range log {
		if seen[op.N] {
			t.Errorf("two operations have number %d", op.N)
		}
		seen[op.N] = true
	}
	if under.most.Load() != 1 {
		t.Errorf("%d operations on the disk at once, want one", under.most.Load())
	}
	if len(seen) != 8*20*4 {
		t.Errorf("%d operations, want %d", len(seen), 8*20*4)
	}
	states, err := fault.Replay(start, log, fault.Options{Limit: 1})
	check.Must(t, err)
	for s := range states {
		if s.Lost == "" {
			if diff := cmp.Diff(look(t, dir), materialised(t, s)); diff != "" {
				t.Errorf("replayed (-disk +replay):\n%s", diff)
			}
			return
		}
	}
	t.Error("no state in which everything survives")
}

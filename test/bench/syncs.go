// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// syncCounter counts the file syncs of a process in the kernel, by the tracepoints of the system calls. Writes to a file that was
// opened with O_SYNC are none.
type syncCounter struct {
	// mount is a tracefs that is mounted nowhere: nobody stumbles over it, however the bench ends.
	mount *os.File
	// instance is a trace buffer of our own: others' tracing is left alone.
	instance string
}

// syncCalls are the system calls that wait for a disk.
func syncCalls() []string { return []string{"fsync", "fdatasync", "syncfs", "sync_file_range", "sync"} }

// newSyncCounter fails with the reason where the kernel does not count for us. dir is for a file to sync.
func newSyncCounter(ctx context.Context, dir string) (_ *syncCounter, err error) {
	mount, err := mountTracing()
	if err != nil {
		return nil, fmt.Errorf("file syncs are not counted: %w", err)
	}
	s := &syncCounter{mount: mount}
	defer func() {
		if err != nil {
			err = fmt.Errorf("file syncs are not counted: %w", errors.Join(err, s.close()))
		}
	}()
	instance := fmt.Sprintf("/proc/self/fd/%d/instances/fettle-bench-%d", mount.Fd(), os.Getpid())
	if err := os.Mkdir(instance, 0o700); err != nil {
		return nil, fmt.Errorf("make a trace buffer: %w", err)
	}
	s.instance = instance
	// Threads that the process starts later count too.
	if err := s.set("options/event-fork", "1"); err != nil {
		return nil, err
	}
	if err := s.check(ctx, dir); err != nil {
		return nil, err
	}
	return s, nil
}

// mountTracing gives a tracefs without a place in the tree (fsmount(2)). There is but one behind all mounts.
func mountTracing() (*os.File, error) {
	const name = "tracefs"
	made, err := unix.Fsopen(name, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("open "+name, err)
	}
	defer unix.Close(made) //nolint:errcheck // it has done its work
	if err := unix.FsconfigCreate(made); err != nil {
		return nil, os.NewSyscallError("create "+name, err)
	}
	fd, err := unix.Fsmount(made, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("mount "+name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// check counts what it did itself: in a PID namespace the kernel would count another process.
func (s *syncCounter) check(ctx context.Context, dir string) error {
	const want = 2
	n, err := s.count(ctx, os.Getpid(), func() error {
		f, err := os.CreateTemp(dir, "sync")
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), unix.Fdatasync(int(f.Fd())), f.Close(), os.Remove(f.Name()))
	})
	if err == nil && n != want {
		err = fmt.Errorf("of %d of our own the kernel's trace has %d, as in a PID namespace", want, n)
	}
	return err
}

// count runs do and returns how many syncs a process made meanwhile, and until it made no more.
func (s *syncCounter) count(ctx context.Context, pid int, do func() error) (n int, err error) {
	if err := errors.Join(s.follow(pid), s.set("trace", "")); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.enable("0")) }()
	if err := s.enable("1"); err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	last := -1
	_, err = await(ctx, time.Now(), "the last file sync", func() (bool, error) {
		const calm = 20 * time.Millisecond
		if err := pause(ctx, calm); err != nil {
			return false, err
		}
		trace, err := os.ReadFile(filepath.Join(s.instance, "trace"))
		n = countSyncs(string(trace))
		done := n == last
		last = n
		return done, err
	})
	return n, err
}

// follow has every thread of a process counted. One that is started while they are read may be missing from the list, and its
// parent not yet followed, so they are read until they are those that are followed.
func (s *syncCounter) follow(pid int) error {
	followed, err := threads(pid)
	for err == nil {
		if err = s.set("set_event_pid", strings.Join(followed, " ")); err != nil {
			break
		}
		var now []string
		if now, err = threads(pid); err == nil && slices.Equal(now, followed) {
			return nil
		}
		followed = now
	}
	return err
}

// countSyncs counts the events of a trace: lines such as "plugin-4711 [001] ..... 12.345678: sys_fsync(fd: 8)". The names are the
// kernel's, whatever the architecture.
func countSyncs(trace string) int {
	n := 0
	for line := range strings.Lines(trace) {
		for _, call := range syncCalls() {
			if !strings.HasPrefix(line, "#") && strings.Contains(line, ": sys_"+call+"(") {
				n++
			}
		}
	}
	return n
}

// enable switches the tracepoints on or off. A kernel that lacks one of the rarer calls counts the others.
func (s *syncCounter) enable(value string) error {
	var errs []error
	for _, call := range syncCalls() {
		err := s.set("events/syscalls/sys_enter_"+call+"/enable", value)
		if call == "fsync" || call == "fdatasync" || !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// set writes one of the kernel's files.
func (s *syncCounter) set(name, value string) error {
	f, err := os.OpenFile(filepath.Join(s.instance, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func (s *syncCounter) close() error {
	var err error
	if s.instance != "" {
		err = os.Remove(s.instance)
	}
	return errors.Join(err, s.mount.Close())
}

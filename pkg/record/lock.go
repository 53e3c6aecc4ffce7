// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Locks are ranges of one file, held by an open file description (fcntl(2), F_OFD_SETLK): they keep out other processes and other
// callers of this one alike, cost no file each, and end with the process that holds them. A claim is always locked before its
// devices, and devices in the order of their ranges, so nobody waits in a circle.

// Hold is what one caller has locked.
type Hold struct {
	file *os.File
	// uid is the claim, if it is one that is locked.
	uid string
	// Waited: somebody else had a part of it first, so what the caller knew before may be out of date.
	Waited bool
}

// ErrBusy is returned where another caller holds what was asked for until ctx ended.
var ErrBusy = errors.New("is busy")

const (
	specsOffset = 0
	firstOffset = 1024
	// lockRetry is how soon a held lock is tried again, doubling to maxLockRetry. A Prepare without steps holds it for about a
	// millisecond.
	lockRetry    = time.Millisecond
	maxLockRetry = 32 * time.Millisecond
)

// LockClaim waits until nobody else works on the claim, or until ctx ends.
func (s *Store) LockClaim(ctx context.Context, uid string) (*Hold, error) {
	h, err := s.hold(ctx, claimLock(uid))
	if err != nil {
		return nil, fmt.Errorf("claim %s %w", uid, err)
	}
	h.uid = uid
	return h, nil
}

// TryLockClaim returns nil without an error where somebody else works on the claim.
func (s *Store) TryLockClaim(uid string) (*Hold, error) {
	h, err := s.try(claimLock(uid))
	if err != nil {
		return nil, fmt.Errorf("lock claim %s: %w", uid, err)
	}
	if h != nil {
		h.uid = uid
	}
	return h, nil
}

func claimLock(uid string) unix.Flock_t {
	return unix.Flock_t{Type: unix.F_WRLCK, Start: offsetOf("claim/" + uid), Len: 1}
}

// LockSpecs keeps shared CDI specs where they are (shared) or lets the caller remove some (exclusive). It is held for a moment.
func (s *Store) LockSpecs(ctx context.Context, exclusive bool) (*Hold, error) {
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: specsOffset, Len: 1}
	if exclusive {
		lock.Type = unix.F_WRLCK
	}
	h, err := s.hold(ctx, lock)
	if err != nil {
		return nil, fmt.Errorf("the CDI directory %w", err)
	}
	return h, nil
}

// LockAll waits until nobody works on anything.
func (s *Store) LockAll(ctx context.Context) (*Hold, error) {
	h, err := s.hold(ctx, unix.Flock_t{Type: unix.F_WRLCK})
	if err != nil {
		return nil, fmt.Errorf("the state directory %w", err)
	}
	return h, nil
}

// Devices also locks devices, each named POOL/DEVICE, whatever their order.
func (h *Hold) Devices(ctx context.Context, names []string) error {
	offsets := make(map[int64]string, len(names))
	for _, name := range names {
		offsets[offsetOf("device/"+name)] = name
	}
	order := make([]int64, 0, len(offsets))
	for offset := range offsets {
		order = append(order, offset)
	}
	slices.Sort(order)
	for _, offset := range order {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: offset, Len: 1}
		waited, err := poll(ctx, func() (bool, error) { return set(h.file, lock) })
		if err != nil {
			return fmt.Errorf("device %s %w", offsets[offset], err)
		}
		h.Waited = h.Waited || waited
	}
	return nil
}

// Release unlocks everything.
func (h *Hold) Release() { _ = h.file.Close() }

func (s *Store) hold(ctx context.Context, lock unix.Flock_t) (h *Hold, err error) {
	waited, err := poll(ctx, func() (bool, error) {
		h, err = s.try(lock)
		return h != nil, err
	})
	if err != nil {
		return nil, err
	}
	h.Waited = waited
	return h, nil
}

// try returns nil without an error where another holds the lock. A lock on a file that Destroy removed meanwhile keeps nobody out,
// so the file is looked at again once it is locked.
func (s *Store) try(lock unix.Flock_t) (*Hold, error) {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	locked, err := set(f, lock)
	if err == nil && locked {
		locked, err = isAt(f, path)
	}
	if err != nil || !locked {
		return nil, errors.Join(err, f.Close())
	}
	return &Hold{file: f}, nil
}

func set(f *os.File, lock unix.Flock_t) (bool, error) {
	lock.Whence = 0
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return true, nil
}

func isAt(f *os.File, path string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, named), err
}

// poll tries until it succeeds, fails or ctx ends. It says whether it had to wait.
func poll(ctx context.Context, try func() (bool, error)) (waited bool, err error) {
	for wait := lockRetry; ; wait = min(2*wait, maxLockRetry) {
		ok, err := try()
		if ok || err != nil {
			return wait > lockRetry, err
		}
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("%w: another call works on it: %w", ErrBusy, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// offsetOf spreads names over the range of offsets: two names that share one wait for each other, which costs time and breaks
// nothing.
func offsetOf(name string) int64 {
	return firstOffset + int64(hashOf(name)%(math.MaxInt64-2*firstOffset))
}

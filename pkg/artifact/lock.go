// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Locks are bytes of one file, held by an open file description (fcntl(2), F_OFD_SETLK): they keep out other processes and other
// goroutines alike and end with the process. Who holds a digest may lock the names, not the other way round.

const (
	lockFile = "lock"
	// namesOffset is held for a moment, by who counts, reserves, removes, pins or completes.
	namesOffset  = 0
	firstOffset  = 1024
	lockRetry    = time.Millisecond
	maxLockRetry = 64 * time.Millisecond
)

// digestOffset: two digests that share an offset wait for each other, which costs time and breaks nothing.
func digestOffset(d Digest) int64 {
	return firstOffset + int64(binary.BigEndian.Uint64(d[:])%(math.MaxInt64-2*firstOffset))
}

// lock waits until nobody else holds the offset, or until ctx ends. unlock never fails.
func (s *Store) lock(ctx context.Context, offset int64, what string) (unlock func(), err error) {
	f, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, onDisk(fmt.Errorf("lock %s: %w", what, err))
	}
	for wait := lockRetry; ; wait = min(2*wait, maxLockRetry) {
		if held, err := setLock(f, offset); held || err != nil {
			return closing(f), onDisk(err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("%s is in use by another fetch or process: %w", what, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// tryLock returns nil where somebody else holds the offset, or it cannot be told.
func (s *Store) tryLock(offset int64) (unlock func()) {
	f, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil
	}
	if held, err := setLock(f, offset); !held || err != nil {
		_ = f.Close()
		return nil
	}
	return closing(f)
}

func closing(f *os.File) func() { return func() { _ = f.Close() } }

func setLock(f *os.File, offset int64) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: offset, Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINTR):
		return false, nil
	}
	return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
}

func (s *Store) lockDigest(ctx context.Context, d Digest) (unlock func(), err error) {
	return s.lock(ctx, digestOffset(d), "the blob "+d.String())
}

func (s *Store) lockNames(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, namesOffset, "the artifact store "+s.dir)
}

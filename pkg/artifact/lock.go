// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/fettle-dev/fettle/pkg/filelock"
)

// Locks are bytes of one file. A caller that holds a digest may lock the names, not the other way round.

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

// lock waits for a byte of the lock file, or until ctx ends. unlock never fails.
func (s *directory) lock(ctx context.Context, offset int64, what string) (unlock func(), err error) {
	f, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, onDisk(fmt.Errorf("lock %s: %w", what, err))
	}
	_, err = filelock.Backoff{First: lockRetry, Longest: maxLockRetry}.Retry(ctx, func() (bool, error) { return tryByte(f, offset) })
	if err == nil {
		return closing(f), nil
	}
	_ = f.Close()
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("%s is in use by another fetch or process: %w", what, context.Cause(ctx))
	}
	return nil, onDisk(err)
}

// tryLock returns nil where another fetch or process holds the byte, or where that cannot be told.
func (s *directory) tryLock(offset int64) (unlock func()) {
	f, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil
	}
	if held, err := tryByte(f, offset); !held || err != nil {
		_ = f.Close()
		return nil
	}
	return closing(f)
}

func tryByte(f *os.File, offset int64) (bool, error) {
	return filelock.Range{Start: offset, Len: 1}.Try(f, filelock.Exclusive)
}

func closing(f *os.File) func() { return func() { _ = f.Close() } }

// patience is how long a fetch waits for one of the same digest from another repository, which may be much slower.
const patience = 2 * time.Second

// lockFetch locks a digest for a fetch from a repository. It returns the name under which the fetch keeps what it has not finished. That is
// the digest itself, unless a fetch from another repository has that and does not end soon: otherwise anybody could have others wait who
// names what they fetch in a registry that never ends.
func lockFetch(ctx context.Context, s *Store, d Digest, repository string) (unfinished Digest, unlock func(), err error) {
	own := DigestOf([]byte(d.String() + " " + repository))
	unlockOwn, err := s.lockDigest(ctx, own)
	if err != nil {
		return Digest{}, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	unlockDigest, err := s.lockDigest(waiting, d)
	switch {
	case err == nil:
		return d, func() { unlockDigest(); unlockOwn() }, nil
	case ctx.Err() == nil && waiting.Err() != nil:
		return own, unlockOwn, nil
	}
	unlockOwn()
	return Digest{}, nil, err
}

func (s *directory) lockDigest(ctx context.Context, d Digest) (unlock func(), err error) {
	return s.lock(ctx, digestOffset(d), "the blob "+d.String())
}

func (s *directory) lockNames(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, namesOffset, "the artifact store "+s.dir)
}

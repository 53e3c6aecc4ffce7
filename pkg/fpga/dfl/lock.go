// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is how soon a held lock is tried again, doubling to maxLockRetry.
const (
	lockRetry    = 5 * time.Millisecond
	maxLockRetry = 200 * time.Millisecond
)

// lockFME waits until nobody else programs the FME, or until ctx ends. The lock belongs to the open file (fcntl(2), F_OFD_SETLK): it
// keeps out another plugin process during a rolling update and other callers of this process alike, and a process that is killed while
// the kernel programs for it keeps the lock until the kernel is done, because its files are closed only then.
func (h *Host) lockFME(ctx context.Context, p Port) (*os.File, error) {
	for wait := lockRetry; ; wait = min(2*wait, maxLockRetry) {
		f, err := tryLock(p.LockFile)
		if err != nil {
			return nil, &Error{Kind: Terminal, Port: p.Name, Op: "lock the FME of", Err: err, Next: "look at the state directory"}
		}
		if f != nil {
			return f, nil
		}
		if err := h.pause(ctx, wait); err != nil {
			err = fmt.Errorf("another call programs the card: %w", err)
			return nil, &Error{Kind: Retryable, Port: p.Name, Op: "lock the FME of", Err: err, Next: nextRetry}
		}
	}
}

// tryLock returns nil without an error where another holds the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	// Who locked a file that was removed or replaced before keeps nobody out.
	held, err := f.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = os.Stat(path); err == nil && os.SameFile(held, named) {
			return f, nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return nil, errors.Join(err, f.Close())
}

// pause waits on the host's clock, or returns why ctx ended.
func (h *Host) pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := h.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

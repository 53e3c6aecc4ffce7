// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// lockRetry is how soon a held lock is tried again, doubling to maxLockRetry.
const (
	lockRetry    = 5 * time.Millisecond
	maxLockRetry = 200 * time.Millisecond
)

// Lock waits until nobody else has the file locked, or until ctx ends, which is a Retryable error. The lock belongs to the open file
// (fcntl(2), F_OFD_SETLK): it keeps out other processes and other callers of this one alike, and lives until the last process that was
// given the file has closed it. The file lies where every plugin process of the node sees the same one, and is never removed.
func Lock(ctx context.Context, clock clock.Clock, device, path string) (*os.File, error) {
	for wait := lockRetry; ; wait = min(2*wait, maxLockRetry) {
		f, err := tryLock(path)
		if err != nil {
			return nil, &Error{Kind: Terminal, Device: device, Op: "lock", Err: err, Next: "look at the state directory"}
		}
		if f != nil {
			return f, nil
		}
		if err := Pause(ctx, clock, wait); err != nil {
			err = fmt.Errorf("another call programs the chip: %w", err)
			return nil, &Error{Kind: Retryable, Device: device, Op: "lock", Err: err, Next: NextRetry}
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

// Pause waits on the clock, or returns why ctx ended.
func Pause(ctx context.Context, clock clock.Clock, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

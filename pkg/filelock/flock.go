// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Flock locks a whole file or directory. It waits in the kernel's queue for as long as another holds it.
func Flock(f *os.File, m Mode) error { return flock(f, m, 0) }

// TryFlock returns false where another holds the file.
func TryFlock(f *os.File, m Mode) (bool, error) {
	err := flock(f, m, unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// WaitFlock is Flock until ctx ends, which is ErrHeld. It closes f unless it locks it. After the end of ctx the kernel still has the waiter
// in its queue; once that one gets the lock it gives it up.
func WaitFlock(ctx context.Context, f *os.File, m Mode) error {
	locked, err := TryFlock(f, m)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if locked {
		return nil
	}
	result := make(chan error)
	go func() {
		err := Flock(f, m)
		if err != nil {
			err = errors.Join(err, f.Close())
		}
		select {
		case result <- err:
		case <-ctx.Done():
			_ = f.Close() // it was only locked
		}
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrHeld, context.Cause(ctx))
	}
}

func flock(f *os.File, m Mode, flags int) error {
	how := unix.LOCK_EX
	if m == Shared {
		how = unix.LOCK_SH
	}
	for {
		err := unix.Flock(int(f.Fd()), how|flags)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}

// ErrHeld is returned where another caller or process held the lock until the context ended. The context's cause follows it.
var ErrHeld = errors.New("another call or process holds the lock")

// Backoff says how soon a held lock is tried again: after First, then after twice as long each time, up to Longest.
type Backoff struct{ First, Longest time.Duration }

// Retry calls try until it succeeds or fails, or until ctx ends, which is ErrHeld. waited says that the first try did not succeed.
func (b Backoff) Retry(ctx context.Context, try func() (bool, error)) (waited bool, err error) {
	for wait := b.First; ; wait = min(2*wait, b.Longest) {
		locked, err := try()
		if locked || err != nil {
			return waited, err
		}
		waited = true
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("%w: %w", ErrHeld, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

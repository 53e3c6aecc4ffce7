// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/filelock"
)

// Lock waits until no other call has the file locked. If ctx ends first, the error is Retryable. A program that inherits the file keeps it
// locked until it ends. The file is at the same place for every plugin process of the node, and is never removed.
func Lock(ctx context.Context, device, path string) (*os.File, error) {
	var f *os.File
	_, err := filelock.Backoff{First: 5 * time.Millisecond, Longest: 200 * time.Millisecond}.Retry(ctx, func() (locked bool, err error) {
		f, err = filelock.Range{}.TryAt(path, filelock.Exclusive)
		return f != nil, err
	})
	if errors.Is(err, filelock.ErrHeld) {
		err = fmt.Errorf("another call programs the chip: %w", err)
		return nil, &Error{Kind: Retryable, Device: device, Op: "lock", Err: err, Next: NextRetry}
	}
	if err != nil {
		return nil, &Error{Kind: Terminal, Device: device, Op: "lock", Err: err, Next: "check the state directory"}
	}
	return f, nil
}

// Pause waits on the clock. If ctx ends first, it returns the cause.
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

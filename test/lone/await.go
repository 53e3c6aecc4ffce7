// SPDX-License-Identifier: Apache-2.0

package lone

import (
	"context"
	"fmt"
	"time"
)

// Patience is how long anything may take.
const Patience = time.Minute

// Await polls until check is done, and returns the time since begin.
func Await(ctx context.Context, begin time.Time, what string, done func() (bool, error)) (time.Duration, error) {
	const interval = 2 * time.Millisecond
	for time.Since(begin) < Patience {
		ok, err := done()
		if err != nil {
			return 0, fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return time.Since(begin), nil
		}
		if err := Pause(ctx, interval); err != nil {
			return 0, fmt.Errorf("wait for %s: %w", what, err)
		}
	}
	return 0, fmt.Errorf("wait for %s: not within %s", what, Patience)
}

// Pause waits, less when ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

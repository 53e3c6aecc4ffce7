// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"time"
)

// pollInterval is the pause between two looks at something that is about to happen, on a usual machine.
const pollInterval = 100 * time.Millisecond

// lastLook is how long the look may take that begins just before the limit.
const lastLook = 5 * time.Second

// Poll looks until look returns nil, and fails with its last error once the limit has passed, which is that of a usual machine. What is
// waited for is named in the error.
func (c Config) Poll(ctx context.Context, what string, limit time.Duration, look func(context.Context) error) error {
	limit = c.Patient(limit)
	// The last look has longer: a client that cannot be done in time refuses to ask at all, and what is waited for stays untold.
	looking, stop := context.WithTimeout(ctx, limit+c.Patient(lastLook))
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(c.Pace(pollInterval)) // looking keeps a slow machine from getting on
	defer ticker.Stop()
	var last error
	for {
		err := look(looking)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // an error that the deadline itself made says nothing
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %s: %w", what, limit, last)
		case <-ticker.C:
		}
	}
}

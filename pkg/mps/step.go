// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fettle-dev/fettle/pkg/step"
)

const (
	// DefaultWait leaves a step the time to fail within the 45 seconds that kubelet waits.
	DefaultWait = 15 * time.Second
	// pause is that between two questions whether a daemon is ready.
	pause = 50 * time.Millisecond
)

// Runner has daemons run for claims.
type Runner struct {
	Client Client
	// Wait limits how long Apply waits for a daemon to be ready, and Undo for it to be gone. Default DefaultWait.
	Wait time.Duration
}

// Kinds returns the step kind.
func (r Runner) Kinds() step.Kinds {
	return step.Kinds{StepKind: {
		Apply:  step.Do(r.Ensure),
		Undo:   step.Do(func(ctx context.Context, d *Daemon) error { return r.stop(ctx, d.ID) }),
		Verify: step.Do(r.Ensure),
	}}
}

// Ensure has a daemon run, and waits until it is ready. A daemon that is not ready in time goes on starting, so a later call finds it
// further. The error is ErrNotReady then.
func (r Runner) Ensure(ctx context.Context, d *Daemon) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Wait, DefaultWait))
	defer cancel()
	var last Status
	for {
		status, err := r.Client.Run(ctx, d)
		switch {
		case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
			last.ID = d.ID
			return fmt.Errorf("%w: %w", notReady(last), err) // the time ended during the question
		case err != nil:
			return err
		case status.State == Ready:
			return nil
		}
		last = status
		select {
		case <-ctx.Done():
			return notReady(last)
		case <-time.After(pause):
		}
	}
}

func notReady(s Status) error {
	err := fmt.Errorf("MPS daemon %s %w (%s, started again %d times)", s.ID, ErrNotReady, cmp.Or(s.State, Starting), s.Restarts)
	if s.Reason != "" {
		err = fmt.Errorf("%w: %s", err, s.Reason)
	}
	return err
}

func (r Runner) stop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Wait, DefaultWait))
	defer cancel()
	return r.Client.Stop(ctx, id)
}

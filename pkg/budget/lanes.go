// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lanes are turns for work that reads a source that may be slow. Work begins in the quick lane. What takes longer than the quick lane gives
// it goes on in the slow lane, where slow sources hold up only each other.
type Lanes struct {
	quick, slow *Turns
	first       time.Duration
}

// NewLanes returns lanes with these limits. Work has the time first in the quick lane.
func NewLanes(quick, slow Limit, first time.Duration) *Lanes {
	return &Lanes{quick: NewTurns(quick), slow: NewTurns(slow), first: first}
}

// ErrSlow says that work took longer than its time in the slow lane.
var ErrSlow = errors.New("it comes too slowly, and others wait")

// Do calls do in a turn of a namespace. If no turn of the slow lane is free when the time of the quick lane is over, the context of do
// ends, and do is called once more when there is one. In the slow lane it has the time most. Waiting for turns takes none of these times.
func (l *Lanes) Do(ctx context.Context, namespace string, most time.Duration, do func(context.Context) error) error {
	late, moved, err := l.begin(ctx, namespace, most, do)
	if late && !moved {
		late, err = l.again(ctx, namespace, most, do)
	}
	if late {
		return fmt.Errorf("%w: it was not done within %s: %w", ErrSlow, most, err)
	}
	return err
}

// begin calls do in the quick lane, and moves it to the slow lane if it is late and a turn is free there.
func (l *Lanes) begin(
	ctx context.Context, namespace string, most time.Duration, do func(context.Context) error,
) (late, moved bool, err error) {
	done, err := l.quick.Take(ctx, namespace)
	if err != nil {
		return false, false, fmt.Errorf("wait until others are read: %w", err)
	}
	defer func() { done() }()
	late, err = watched(ctx, do, func(ended <-chan struct{}) (late bool) {
		if closes(ended, l.first) {
			return false
		}
		slow := l.slow.try(namespace)
		if slow == nil {
			return true
		}
		done()
		done, moved = slow, true
		return !closes(ended, most)
	})
	return late, moved, err
}

// again calls do in the slow lane.
func (l *Lanes) again(ctx context.Context, namespace string, most time.Duration, do func(context.Context) error) (late bool, err error) {
	done, err := l.slow.Take(ctx, namespace)
	if err != nil {
		return false, fmt.Errorf("wait until others that are slow, too, are read: %w", err)
	}
	defer done()
	return watched(ctx, do, func(ended <-chan struct{}) bool { return !closes(ended, most) })
}

// watched calls do while isLate runs, and ends the context of do if isLate returns true. It returns true if do then failed.
func watched(
	ctx context.Context, do func(context.Context) error, isLate func(ended <-chan struct{}) bool,
) (late bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if late = isLate(ended); late {
			cancel()
		}
	}()
	err = func() error {
		defer func() { // after a panic, too
			close(ended)
			<-watched
		}()
		return do(ctx)
	}()
	return late && err != nil, err
}

// closes reports whether a channel is closed within a time.
func closes(ended <-chan struct{}, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

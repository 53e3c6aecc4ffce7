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

// ErrSlow says that work had no more time in the slow lane.
var ErrSlow = errors.New("it comes too slowly")

// Pace says how long work may take in the slow lane. Only Most is required.
type Pace struct {
	// Most is how long it may take at most, however well it moves.
	Most time.Duration
	// Moved returns how many bytes arrived so far. Nil: only Most limits the work.
	Moved func() int64
	// Window is how often Moved is looked at. Work that got fewer than Least bytes in a window ends.
	Window time.Duration
	Least  int64
	// Fair is the time after which work must make way: if another namespace waits for its turn, it ends unless it got FairLeast bytes in the
	// last window.
	Fair      time.Duration
	FairLeast int64
}

// tooSlow waits until work ends, and returns why it must end before, or nil. othersWait reports whether another namespace
// waits for the turn.
func (p *Pace) tooSlow(ended <-chan struct{}, othersWait func() bool) error {
	begun, before := time.Now(), int64(0)
	if p.Moved != nil {
		before = p.Moved()
	}
	for {
		took := time.Since(begun)
		if took >= p.Most {
			return fmt.Errorf("%w: it was not done within %s", ErrSlow, p.Most)
		}
		wait := p.Most - took
		if p.Moved != nil {
			wait = min(wait, p.Window)
		}
		if closes(ended, wait) {
			return nil
		}
		if p.Moved == nil || wait < p.Window {
			continue
		}
		least := p.Least
		if time.Since(begun) >= p.Fair && othersWait() {
			least = p.FairLeast
		}
		now := p.Moved()
		if got := now - before; got < least {
			return fmt.Errorf("%w: %d bytes came within %s, expected %d", ErrSlow, got, p.Window, least)
		}
		before = now
	}
}

// Do calls do in a turn of a namespace. If no turn of the slow lane is free when the time of the quick lane is over, the context of do
// ends, and do is called once more when there is one. In the slow lane its pace limits it. Waiting for turns takes none of these times.
func (l *Lanes) Do(ctx context.Context, namespace string, pace Pace, do func(context.Context) error) error {
	late, moved, err := l.begin(ctx, namespace, pace, do)
	if late != nil && !moved {
		late, err = l.again(ctx, namespace, pace, do)
	}
	if late != nil {
		return fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// errLate ends work in the quick lane, which is begun again in the slow lane.
var errLate = errors.New("it goes on in the slow lane")

// begin calls do in the quick lane, and moves it to the slow lane if it is late and a turn is free there.
func (l *Lanes) begin(
	ctx context.Context, namespace string, pace Pace, do func(context.Context) error,
) (late error, moved bool, err error) {
	done, err := l.quick.Take(ctx, namespace)
	if err != nil {
		return nil, false, fmt.Errorf("wait until others are read: %w", err)
	}
	defer func() { done() }()
	late, err = watched(ctx, do, func(ended <-chan struct{}) error {
		if closes(ended, l.first) {
			return nil
		}
		slow := l.slow.try(namespace)
		if slow == nil {
			return errLate
		}
		done()
		done, moved = slow, true
		return l.tooSlow(ended, namespace, pace)
	})
	return late, moved, err
}

func (l *Lanes) tooSlow(ended <-chan struct{}, namespace string, pace Pace) error {
	return pace.tooSlow(ended, func() bool { return l.slow.othersWait(namespace) })
}

// again calls do in the slow lane.
func (l *Lanes) again(ctx context.Context, namespace string, pace Pace, do func(context.Context) error) (late, err error) {
	done, err := l.slow.Take(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("wait until others that are slow, too, are read: %w", err)
	}
	defer done()
	return watched(ctx, do, func(ended <-chan struct{}) error { return l.tooSlow(ended, namespace, pace) })
}

// watched calls do while isLate runs, and ends the context of do if isLate returns an error. It returns that if do then failed.
func watched(
	ctx context.Context, do func(context.Context) error, isLate func(ended <-chan struct{}) error,
) (late, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if late = isLate(ended); late != nil {
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
	if err == nil {
		late = nil
	}
	return late, err
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

// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Reads reads attributes of which the driver may take long, or for ever: it shows them under a lock that it holds while it does what
// somebody asked it to. A process cannot take back such a read. It is safe for concurrent use.
type Reads struct {
	clock clock.Clock
	limit time.Duration

	mu      sync.Mutex
	reading map[string]chan struct{}
}

// NewReads limits how long each read is waited for.
func NewReads(c clock.Clock, limit time.Duration) *Reads {
	return &Reads{clock: c, limit: limit, reading: map[string]chan struct{}{}}
}

// Read calls read for an attribute, and fails with ErrNoAnswer after the limit. It does not read what an earlier Read still waits for: each
// costs a thread.
func (r *Reads) Read(ctx context.Context, name string, read func() (string, error)) (string, error) {
	timer := r.clock.NewTimer(r.limit)
	defer timer.Stop()
	for {
		var value string
		var err error
		done, mine := r.begin(name)
		if mine {
			go func() {
				value, err = read()
				r.mu.Lock()
				delete(r.reading, name)
				r.mu.Unlock()
				close(done)
			}()
		}
		if late := wait(ctx, "read "+HostPath(name), r.limit, done, timer.C()); late != nil {
			return "", late
		}
		if mine {
			return value, err
		}
	}
}

// begin says that an attribute is read, unless it is already.
func (r *Reads) begin(name string) (done chan struct{}, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.reading[name]; ok {
		return done, false
	}
	done = make(chan struct{})
	r.reading[name] = done
	return done, true
}

// wait waits until done, and fails with ErrNoAnswer before if time is up.
func wait(ctx context.Context, what string, limit time.Duration, done <-chan struct{}, up <-chan time.Time) error {
	select {
	case <-done:
		return nil
	case <-up:
		return fmt.Errorf("%s: %w (%s)", what, ErrNoAnswer, limit)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w: %w", what, ErrNoAnswer, context.Cause(ctx))
	}
}

// Call is Read for what is no text. It does not wait for what an earlier Call of the name still waits for, but fails at once. late gets a
// result that nobody waits for any more. It may be nil.
func Call[T any](ctx context.Context, r *Reads, name string, call func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	done, mine := r.begin(name)
	if !mine {
		return none, fmt.Errorf("look at %s: the look before has not ended: %w", name, ErrNoAnswer)
	}
	results, abandoned := make(chan result), make(chan struct{})
	go func() {
		var got result
		got.value, got.err = call()
		r.mu.Lock()
		delete(r.reading, name)
		r.mu.Unlock()
		close(done)
		select {
		case results <- got:
		case <-abandoned:
			if late != nil && got.err == nil {
				late(got.value)
			}
		}
	}()
	timer := r.clock.NewTimer(r.limit)
	defer timer.Stop()
	select {
	case got := <-results:
		return got.value, got.err
	case <-timer.C():
		close(abandoned)
		return none, fmt.Errorf("look at %s: %w (%s)", name, ErrNoAnswer, r.limit)
	case <-ctx.Done():
		close(abandoned)
		return none, fmt.Errorf("look at %s: %w: %w", name, ErrNoAnswer, context.Cause(ctx))
	}
}

// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// work takes a time, and fails if its context ends before.
func work(takes time.Duration, begun *atomic.Int32) func(context.Context) error {
	return func(ctx context.Context) error {
		begun.Add(1)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(takes):
			return nil
		}
	}
}

// TestLanes: work that is quick never waits for the end of what is slow, however much of that two namespaces have. Work that is slow is
// done, too, and is not begun twice where the slow lane is free.
func TestLanes(t *testing.T) {
	const first, most = 10 * time.Second, 30 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		lanes := NewLanes(Limit{Node: 2, Namespace: 2}, Limit{Node: 2, Namespace: 1}, first)
		var running sync.WaitGroup
		do := func(namespace string, takes, within time.Duration, attempts int32, want error) {
			running.Go(func() {
				began, begun := time.Now(), atomic.Int32{}
				err := lanes.Do(t.Context(), namespace, most, work(takes, &begun))
				if took := time.Since(began); !errors.Is(err, want) || took > within || begun.Load() > attempts {
					t.Errorf("%s, %s: %v after %s and %d attempts, want %v within %s and %d", namespace, takes, err, took, begun.Load(), want,
						within, attempts)
				}
			})
			synctest.Wait()
		}
		do("alice", time.Minute, time.Minute, 1, nil)
		running.Wait()
		for range 3 {
			for n := range 2 {
				do(fmt.Sprint("mallory-", n), 24*time.Hour, 4*most, 2, ErrSlow)
			}
		}
		time.Sleep(time.Second)
		do("alice", time.Second, first, 1, nil)
		do("", time.Second, first+time.Second, 1, nil)
		do("bob", time.Minute, most+2*time.Minute, 2, nil)
		running.Wait()
		for _, turns := range []*Turns{lanes.quick, lanes.slow} {
			if turns.all != 0 || len(turns.taken) != 0 || len(turns.waiting) != 0 {
				t.Errorf("%d turns are taken: %v, %d wait", turns.all, turns.taken, len(turns.waiting))
			}
		}
	})
}

// TestLanesEnd: what waits for a turn ends with its context, and a panic gives the turn back.
func TestLanesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := NewLanes(Limit{Node: 1}, Limit{Node: 1}, time.Second)
		never := func(ctx context.Context) error { return work(time.Hour, &atomic.Int32{})(ctx) }
		ctx, cancel := context.WithCancelCause(t.Context())
		var running sync.WaitGroup
		reason := errors.New("the plugin ends")
		for range 3 { // in the slow lane, waiting for that, and in the quick lane
			running.Go(func() {
				if err := lanes.Do(ctx, "", time.Hour, never); !errors.Is(err, reason) || errors.Is(err, ErrSlow) {
					t.Errorf("got %v, want %v", err, reason)
				}
			})
			time.Sleep(time.Second - time.Nanosecond)
		}
		cancel(reason)
		running.Wait()
		func() {
			defer func() { _ = recover() }()
			_ = lanes.Do(t.Context(), "", time.Hour, func(context.Context) error { panic("hostile bytes") })
		}()
		if err := lanes.Do(t.Context(), "", time.Hour, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if lanes.quick.all != 0 {
			t.Errorf("%d turns are taken", lanes.quick.all)
		}
	})
}

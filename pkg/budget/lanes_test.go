// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
				err := lanes.Do(t.Context(), namespace, Pace{Most: most}, work(takes, &begun))
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
		lanes, hour := NewLanes(Limit{Node: 1}, Limit{Node: 1}, time.Second), Pace{Most: time.Hour}
		never := func(ctx context.Context) error { return work(time.Hour, &atomic.Int32{})(ctx) }
		ctx, cancel := context.WithCancelCause(t.Context())
		var running sync.WaitGroup
		reason := errors.New("the plugin ends")
		for range 3 { // in the slow lane, waiting for that, and in the quick lane
			running.Go(func() {
				if err := lanes.Do(ctx, "", hour, never); !errors.Is(err, reason) || errors.Is(err, ErrSlow) {
					t.Errorf("got %v, want %v", err, reason)
				}
			})
			time.Sleep(time.Second - time.Nanosecond)
		}
		cancel(reason)
		running.Wait()
		func() {
			defer func() { _ = recover() }()
			_ = lanes.Do(t.Context(), "", hour, func(context.Context) error { panic("hostile bytes") })
		}()
		if err := lanes.Do(t.Context(), "", hour, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if lanes.quick.all != 0 {
			t.Errorf("%d turns are taken", lanes.quick.all)
		}
	})
}

// download gets bytes at a rate until it has its size.
type download struct {
	rate, size int64 // bytes a second, bytes
	moved      atomic.Int64
}

func (d *download) run(ctx context.Context) error {
	for d.moved.Load() < d.size {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
			d.moved.Add(d.rate)
		}
	}
	return nil
}

// TestPace: work goes on as long as it moves, ends when it hardly does, makes way for another namespace unless it moves well, and never
// takes longer than the most.
func TestPace(t *testing.T) {
	const hours = 6 * time.Hour
	for _, test := range []struct {
		name       string
		rate, size int64
		// waits is the namespace that waits for the turn from the beginning on.
		waits  string
		within time.Duration
		err    string
	}{
		{"slow, but it moves", 100, 100 * 2 * 3600, "", 2*time.Hour + time.Minute, ""},
		{"a trickle", 9, 1 << 40, "", 10*time.Minute + 10*time.Second, "bytes came within 10m0s, expected 6000"},
		{"nothing", 0, 1, "", 10*time.Minute + 10*time.Second, "0 bytes came within 10m0s"},
		{"longer than the most", 100, 1 << 40, "", hours + 10*time.Second, "it was not done within 6h0m0s"},
		{"slow, and another waits", 100, 1 << 40, "other", 30*time.Minute + 10*time.Second, "within 10m0s, expected 500000"},
		{"slow, and its own namespace waits", 100, 100 * 2 * 3600, "own", 2*time.Hour + time.Minute, ""},
		{"it moves well, and another waits", 1000, 1000 * 2 * 3600, "other", 2*time.Hour + time.Minute, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lanes := NewLanes(Limit{}, Limit{Node: 1}, 10*time.Second)
				d := &download{rate: test.rate, size: test.size}
				pace := Pace{Most: hours, Moved: d.moved.Load, Window: 10 * time.Minute, Least: 6000, Fair: 30 * time.Minute, FairLeast: 500000}
				ended, begun := make(chan error, 1), time.Now()
				go func() { ended <- lanes.Do(t.Context(), "own", pace, d.run) }()
				time.Sleep(11 * time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				if test.waits != "" {
					go func() { _ = lanes.Do(ctx, test.waits, Pace{Most: hours}, work(24*time.Hour, &atomic.Int32{})) }()
				}
				err := <-ended
				if took := time.Since(begun); took > test.within {
					t.Errorf("it took %s, want at most %s", took, test.within)
				}
				if (err == nil) != (test.err == "") || err != nil && (!errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), test.err)) {
					t.Errorf("got %v, want %q", err, test.err)
				}
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Deadline returns a context whose deadline passes when the test calls pass, and not by a clock: after the test has seen that what the
// deadline is to end has begun.
func Deadline(t testing.TB) (ctx context.Context, pass func()) {
	d := &deadline{Context: context.WithoutCancel(t.Context()), done: make(chan struct{})}
	return d, sync.OnceFunc(func() { close(d.done) })
}

// Passed returns a context whose deadline has passed. What tries before it waits tries once.
func Passed(t testing.TB) context.Context {
	ctx, pass := Deadline(t)
	pass()
	return ctx
}

type deadline struct {
	context.Context
	done chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.done }

func (d *deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// GrowingLimit is for a limit of the product that ends a process which never ends by itself. A process takes its time to come to where the
// test wants it to hang, so the test cannot know a limit that is long enough and no longer. GrowingLimit calls try with limits of which
// each is twice the one before, until try returns true: the process was where the test wants it when the limit ended it.
func GrowingLimit(t testing.TB, what string, try func(limit time.Duration) bool) {
	t.Helper()
	for limit := 100 * time.Millisecond; !try(limit); limit *= 2 { // fragile: one that is too short is followed by a longer one
		if limit > Patience {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// Hang does nothing, as a program does that hangs. It is for processes that a test starts and kills: one whose test was killed itself ends
// after some minutes.
func Hang() {
	<-time.After(5 * Patience) // fragile: the test does not wait for it, it kills the process
}

// SPDX-License-Identifier: Apache-2.0

// Package check has what tests of all packages check in the same way.
package check

import (
	"errors"
	"testing"
	"time"
)

// Patience is how long Eventually waits. It says nothing about how fast anything must be: it ends a test whose condition never holds, on a
// machine that may be busy with other things.
const Patience = 2 * time.Minute

const (
	firstPause   = time.Millisecond
	longestPause = 50 * time.Millisecond
)

// Eventually waits until the condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Poll(t, Patience, func() string {
		if holds() {
			return ""
		}
		return what
	})
}

// Clock is what Wind needs of a clock for tests.
type Clock interface {
	HasWaiters() bool
	Step(d time.Duration)
}

// Wind waits until a condition holds, and lets time pass by a step whenever somebody waits for it. It returns the number of steps.
func Wind(t testing.TB, what string, clock Clock, step time.Duration, holds func() bool) (steps int) {
	t.Helper()
	Eventually(t, what, func() bool {
		if holds() {
			return true
		}
		if clock.HasWaiters() {
			clock.Step(step)
			steps++
		}
		return false
	})
	return steps
}

// Received is a condition for Wind and Eventually: something came over a channel. It holds once for each thing that comes.
func Received(from <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-from:
			return true
		default:
			return false
		}
	}
}

// Poll calls look until it returns an empty text. After the limit the test fails with the last text.
func Poll(t testing.TB, limit time.Duration, look func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		text := look()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, text)
		}
		<-time.After(pause)
	}
}

// Must ends the test where there is an error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

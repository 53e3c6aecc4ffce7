// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// failure is a test that may fail.
type failure struct {
	testing.TB
	text string
}

func (f *failure) Helper() {}

func (f *failure) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		check.Eventually(t, "three looks", func() bool { looks++; return looks == 3 })
		if looks != 3 {
			t.Errorf("looked %d times, want 3", looks)
		}
	})
}

func TestNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, begin := &failure{TB: t}, time.Now()
		defer func() {
			if recover() != f || f.text != "not within 2m0s: the moon" {
				t.Errorf("ended with %q", f.text)
			}
			if took := time.Since(begin); took < check.Patience || took > check.Patience+time.Second {
				t.Errorf("gave up after %s, want %s", took, check.Patience)
			}
		}()
		check.Eventually(f, "the moon", func() bool { return false })
	})
}

func TestDeadline(t *testing.T) {
	ctx, pass := check.Deadline(t)
	child, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if ctx.Err() != nil || child.Err() != nil {
		t.Errorf("before: %v, %v", ctx.Err(), child.Err())
	}
	pass()
	pass()
	<-ctx.Done()
	<-child.Done()
	for _, ctx := range []context.Context{ctx, child, check.Passed(t)} {
		if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("after: %v, %v", err, context.Cause(ctx))
		}
	}
}

func TestGrowingLimit(t *testing.T) {
	var limits []time.Duration
	check.GrowingLimit(t, "three", func(limit time.Duration) bool {
		limits = append(limits, limit)
		return len(limits) == 3
	})
	if len(limits) != 3 || limits[2] != 4*limits[0] {
		t.Errorf("limits %v", limits)
	}
	f := &failure{TB: t}
	defer func() {
		if recover() != f {
			t.Error("it does not give up")
		}
	}()
	check.GrowingLimit(f, "never", func(time.Duration) bool { return false })
}

func TestHurried(t *testing.T) {
	clock := check.Hurried()
	begin := clock.Now()
	<-clock.NewTimer(time.Hour).C()
	<-clock.After(time.Minute)
	if took := clock.Since(begin); took != time.Hour+time.Minute {
		t.Errorf("%s passed", took)
	}
}

func TestBuffer(t *testing.T) {
	var b check.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 100 {
			fmt.Fprint(&b, "x")
		}
	}()
	check.Eventually(t, "the buffer has all that was written", func() bool { return len(b.String()) == 100 })
	<-ended
}

func TestServed(t *testing.T) {
	var b check.Buffer
	for _, tc := range []struct{ write, want string }{
		{"", ""},
		{`I1 server.go:1] "Serving" what="metrics" address="[::]:1"` + "\n", ""},
		{`"Serving" what="probes" address="127.0.0.1:40`, ""},
		{`427"` + "\n", "127.0.0.1:40427"},
	} {
		fmt.Fprint(&b, tc.write)
		if got := b.Served("probes"); got != tc.want {
			t.Errorf("after %q: %q, want %q", b.String(), got, tc.want)
		}
	}
}

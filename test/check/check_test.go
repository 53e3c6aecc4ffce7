// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

func (f *failure) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) }

func TestWantErr(t *testing.T) {
	odd, wrapped := errors.New("odd"), fmt.Errorf("GPU 3: %w", os.ErrNotExist)
	for _, c := range []struct {
		err, kind error
		words     []string
		want      string // of what is told, empty where the error is as it should be
	}{
		{wrapped, nil, nil, ""},
		{wrapped, os.ErrNotExist, []string{"GPU 3"}, ""},
		{nil, nil, []string{"GPU 3"}, `no error, want one that says ["GPU 3"]`},
		{nil, odd, nil, "no error"},
		{wrapped, odd, []string{"GPU 3"}, "want one that odd"},
		{wrapped, nil, []string{"GPU 3", "GPU 4"}, `does not say "GPU 4"`},
	} {
		f := &failure{TB: t}
		func() {
			defer func() { _ = recover() }()
			check.WantErr(f, c.err, c.kind, c.words...)
		}()
		if (f.text == "") != (c.want == "") || !strings.Contains(f.text, c.want) {
			t.Errorf("%v, want %v, %q: told %q, want %q", c.err, c.kind, c.words, f.text, c.want)
		}
	}
}

func TestGolden(t *testing.T) {
	file := filepath.Join(t.TempDir(), "golden")
	check.Must(t, os.WriteFile(file, []byte("{\n  \"a\": 1\n}\n"), 0o600))
	check.GoldenJSON(t, file, map[string]int{"a": 1})
	f := &failure{TB: t}
	check.Golden(f, file, "{}")
	if !strings.Contains(f.text, file) || !strings.Contains(f.text, "-update") {
		t.Errorf("told %q, want the file and what writes it anew", f.text)
	}
	check.Must(t, flag.Set("update", "true"))
	defer func() { check.Must(t, flag.Set("update", "false")) }()
	check.Golden(t, file, "{}")
	if got, err := os.ReadFile(file); err != nil || string(got) != "{}" {
		t.Errorf("-update wrote %q (%v)", got, err)
	}
}

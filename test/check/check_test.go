// SPDX-License-Identifier: Apache-2.0

package check_test

import (
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

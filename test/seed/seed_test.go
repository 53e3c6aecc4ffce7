// SPDX-License-Identifier: Apache-2.0

package seed_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/seed"
)

// logged keeps what a test logs.
type logged struct {
	testing.TB
	text, fatal string
}

func (l *logged) Helper() {}

func (l *logged) Logf(format string, args ...any) { l.text += fmt.Sprintf(format, args...) }

func (l *logged) Fatalf(format string, args ...any) {
	l.fatal = fmt.Sprintf(format, args...)
	panic(l.fatal)
}

func TestSeedIsToldAndTakenBack(t *testing.T) {
	first := &logged{TB: t}
	want := seed.New(first).Perm(100)
	_, told, ok := strings.Cut(first.text, "FETTLE_SEED=")
	if !ok {
		t.Fatalf("the log does not name the seed: %q", first.text)
	}
	if got := seed.New(&logged{TB: t}).Perm(100); fmt.Sprint(got) == fmt.Sprint(want) {
		t.Error("two tests made the same choices without a seed")
	}
	t.Setenv("FETTLE_SEED", told)
	if got := seed.New(&logged{TB: t}).Perm(100); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with FETTLE_SEED=%s the choices are\n%v\nand were\n%v", told, got, want)
	}
}

func TestWrongSeed(t *testing.T) {
	t.Setenv("FETTLE_SEED", "-1")
	l := &logged{TB: t}
	defer func() {
		if recover() == nil || !strings.Contains(l.fatal, `FETTLE_SEED is "-1"`) {
			t.Errorf("a wrong seed: %q", l.fatal)
		}
	}()
	seed.New(l)
}

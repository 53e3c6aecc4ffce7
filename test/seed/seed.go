// SPDX-License-Identifier: Apache-2.0

// Package seed gives tests their random numbers. A test that failed names its seed, and with that seed it makes the same choices again:
//
//	FETTLE_SEED=SEED go test ./PACKAGE -run TEST
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

const variable = "FETTLE_SEED"

// New returns the random numbers of a test. The seed is logged with the test's failure.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	s := rand.Uint64()
	if text, ok := os.LookupEnv(variable); ok {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is %q, want a whole number below 2^64", variable, text)
		}
		s = given
	}
	t.Logf("the random choices of this test: %s=%d", variable, s)
	return rand.New(rand.NewPCG(s, 0))
}

// edges are what values are made worse with.
func edges() []string {
	return []string{
		"", " ", "=", ":", "::", ".", "..", "/", "//", "/../", "*", "?", "@", "@sha256:", "-", "_", "__", "+", "~", "%", "0", "00000", "9",
		"99999", "65535", "65536", "A", "a", "é", "\u202e", "\u00a0", "\u2028", "\ufffd", "\x00", "\x1f", "\x7f", "\n", "\t",
		"[", "[::1]", "gfx", "sm_", "1ms", "Ti",
		"/etc", "/usr", "/run/", "localhost/", strings.Repeat("a", 64), strings.Repeat("x/", 130),
	}
}

// Worse returns one of some values with up to three random changes, as people misspell it and as an attacker would write it.
func Worse(random *rand.Rand, values []string) string {
	value := values[random.IntN(len(values))]
	for range 1 + random.IntN(3) {
		value = change(random, value, values)
	}
	return value
}

// change changes a value at a random place.
func change(random *rand.Rand, value string, others []string) string {
	runes := []rune(value)
	from := random.IntN(len(runes) + 1)
	to := min(len(runes), from+random.IntN(3))
	put := edges()[random.IntN(len(edges()))]
	if random.IntN(8) == 0 {
		other := []rune(others[random.IntN(len(others))])
		put = string(other[random.IntN(len(other)+1):])
	}
	return string(runes[:from]) + put + string(runes[to:])
}

// SPDX-License-Identifier: Apache-2.0

// Package seed gives tests their random numbers. A test that failed names its seed, and with that seed it makes the same choices again:
//
//	FETTLE_SEED=SEED go test ./PACKAGE -run TEST
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
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

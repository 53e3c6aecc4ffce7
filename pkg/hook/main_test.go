// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMain is the program that Program.run starts again, where it does.
func TestMain(m *testing.M) {
	if os.Args[0] == Name {
		fmt.Fprintln(os.Stderr, Become())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

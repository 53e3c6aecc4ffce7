// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Updating reports whether the test was started with -update, which writes golden files anew.
func Updating() bool { return *update }

// Golden fails the test if a file has another text. With -update it writes the text to the file first.
func Golden[T ~string | ~[]byte](t testing.TB, file string, got T) {
	t.Helper()
	if Updating() {
		Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	Must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; if it is right, go test -update writes it anew):\n%s", file, diff)
	}
}

// GoldenJSON compares a value's JSON with a file.
func GoldenJSON(t testing.TB, file string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	Must(t, err)
	Golden(t, file, append(got, '\n'))
}

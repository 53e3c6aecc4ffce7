// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"path/filepath"
	"testing"
)

// Needs skips the test if a file is not there that something else has to make, and says what comes next; in CI it fails instead.
func Needs(t testing.TB, path, next string) {
	t.Helper()
	_, err := os.Stat(path)
	if err == nil {
		return
	}
	unable(t, "%v: %s", err, next)
}

// Helm returns the path of helm: $HELM, or what `make .cache/tools/helm` builds below the repository's root.
func Helm(t testing.TB, repository string) string {
	t.Helper()
	path := os.Getenv("HELM")
	if path == "" {
		path = filepath.Join(repository, ".cache/tools/helm")
	}
	Needs(t, path, "build helm with `make .cache/tools/helm`, or name one in $HELM")
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"os"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	check.Must(t, err)
	return string(text)
}

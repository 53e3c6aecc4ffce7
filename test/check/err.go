// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"strings"
	"testing"
)

// WantErr wants an error of a kind, or of any if that is nil, that says all of some words.
func WantErr(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	switch {
	case err == nil:
		t.Fatalf("no error, want one that says %q", words)
	case kind != nil && !errors.Is(err, kind):
		t.Fatalf("got error %v, want one that %v", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

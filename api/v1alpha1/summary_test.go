// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func TestEnumerate(t *testing.T) {
	for want, names := range map[string][]string{
		"": nil, "a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"},
	} {
		if got := v1alpha1.Enumerate(names); got != want {
			t.Errorf("%q: got %q, want %q", names, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClip(t *testing.T) {
	if got := Clip("short", 1024); got != "short" {
		t.Errorf("%q", got)
	}
	if got := Clip(strings.Repeat("ä", 1000), 1023); len(got) > 1023+3 || !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

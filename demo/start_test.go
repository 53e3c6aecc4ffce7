// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// TestStart: the first page is short, and its pod is the one that scenario 32 runs, whose walk compares every output on a cluster.
func TestStart(t *testing.T) {
	const longest = 900
	page := read(t, documents+"/start.md")
	if words := len(strings.Fields(page)); words > longest {
		t.Errorf("start.md has %d words, want at most %d", words, longest)
	}
	hello := read(t, "32-start/hello.yaml")
	shown := strings.Replace(hello, "fettle.dev/test/busybox:1", "busybox:1.37", 1)
	if !strings.Contains(page, "```yaml\n"+shown+"```") {
		t.Error("start.md does not show 32-start/hello.yaml")
	}
	if want := strings.Replace(hello, "gpu.fettle.dev", "gpus.fettle.dev", 1); read(t, "32-start/broken.yaml") != want {
		t.Error("32-start/broken.yaml is not hello.yaml with the class that the page says")
	}
	if !strings.Contains(read(t, "32-start/expect"), "walk docs/user/start.md") {
		t.Error("scenario 32 does not walk the page")
	}
}

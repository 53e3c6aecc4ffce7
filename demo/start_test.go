// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
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

// TestNightIsTried: each part of the page for nights is held against a cluster by specs that make its symptom.
func TestNightIsTried(t *testing.T) {
	const specs = "../test/e2e/"
	helpers, others := read(t, specs+"night_test.go"), ""
	files, err := filepath.Glob(specs + "*_test.go")
	check.Must(t, err)
	for _, file := range files {
		if filepath.Base(file) != "night_test.go" {
			others += read(t, file)
		}
	}
	parts := regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(read(t, documents+"/night.md"), -1)
	for _, part := range parts {
		if !strings.Contains(helpers, `"`+part[1]+`"`) {
			t.Errorf("no spec runs the command of %q", part[1])
		}
	}
	functions := regexp.MustCompile(`(?m)^func (\w+AtNight)\(ctx`).FindAllStringSubmatch(helpers, -1)
	if len(functions) < len(parts) {
		t.Errorf("%d functions for %d parts", len(functions), len(parts))
	}
	for _, function := range functions {
		if !strings.Contains(others, function[1]+"(ctx") {
			t.Errorf("no spec calls %s", function[1])
		}
	}
}

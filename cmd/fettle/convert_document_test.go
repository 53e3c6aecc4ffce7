// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestConvertDocument converts the pod that the page about conversions begins with, and compares the result with the page's.
func TestConvertDocument(t *testing.T) {
	page, err := os.ReadFile("../../docs/user/convert.md")
	must(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d examples, want a pod and what becomes of it", len(blocks))
	}
	pods := filepath.Join(t.TempDir(), "pods.yaml")
	must(t, os.WriteFile(pods, []byte(blocks[0][1]), 0o600))
	status, stdout, stderr := call(t, "convert", "-f", pods)
	if status != 0 {
		t.Fatal(stderr)
	}
	if diff := cmp.Diff(blocks[1][1], strings.TrimSpace(stdout)+"\n"); diff != "" {
		t.Errorf("converted (-page +got):\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// TestConvertDocument converts the pod that the page about conversions begins with, and compares the result with the page's.
func TestConvertDocument(t *testing.T) {
	_, blocks := examplesOf(t, "convert.md")
	if len(blocks) != 2 {
		t.Fatalf("the page has %d examples, want a pod and what becomes of it", len(blocks))
	}
	pods := filepath.Join(t.TempDir(), "pods.yaml")
	check.Must(t, os.WriteFile(pods, []byte(blocks[0]), 0o600))
	status, stdout, stderr := call(t, "convert", "-f", pods)
	if status != 0 {
		t.Fatal(stderr)
	}
	if diff := cmp.Diff(blocks[1], strings.TrimSpace(stdout)+"\n"); diff != "" {
		t.Errorf("converted (-page +got):\n%s", diff)
	}
}

// TestFromOtherDriversDocument converts the page's first example, compares the result with the page's, and validates it and the class.
func TestFromOtherDriversDocument(t *testing.T) {
	_, blocks := examplesOf(t, "from-other-drivers.md")
	blocks = slices.DeleteFunc(blocks, func(block string) bool { return !strings.Contains(block, "kind:") }) // values of the chart
	if len(blocks) != 3 {
		t.Fatalf("the page has %d examples, want claims, what becomes of them, and a class", len(blocks))
	}
	dir := t.TempDir()
	for i, block := range blocks {
		name := filepath.Join(dir, string(rune('a'+i))+".yaml")
		check.Must(t, os.WriteFile(name, []byte(block), 0o600))
		if status, _, stderr := call(t, "validate", name); status != 0 {
			t.Error(stderr)
		}
	}
	status, stdout, stderr := call(t, "convert", "-f", filepath.Join(dir, "a.yaml"))
	if status != 0 {
		t.Fatal(stderr)
	}
	if diff := cmp.Diff(blocks[1], stdout); diff != "" {
		t.Errorf("converted (-page +got):\n%s", diff)
	}
}

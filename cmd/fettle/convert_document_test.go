// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// TestConvertDocument converts the pod that the page about conversions begins with, and compares the result with the file that it links to.
func TestConvertDocument(t *testing.T) {
	page, blocks := examplesOf(t, "convert.md")
	if len(blocks) != 1 {
		t.Fatalf("the page has %d examples, want a pod", len(blocks))
	}
	wantConverted(t, blocks[0], example(t, page, "convert/converted.yaml"))
}

// TestFromOtherDriversDocument converts the page's first example, compares the result with the file that it links to, and validates all of
// them and the class.
func TestFromOtherDriversDocument(t *testing.T) {
	page, blocks := examplesOf(t, "from-other-drivers.md")
	if len(blocks) != 2 {
		t.Fatalf("the page has %d examples, want claims and a class", len(blocks))
	}
	converted := example(t, page, "from-other-drivers/converted.yaml")
	wantConverted(t, blocks[0], converted)
	names := []string{converted}
	for i, block := range blocks {
		names = append(names, filepath.Join(t.TempDir(), string(rune('a'+i))+".yaml"))
		check.Must(t, os.WriteFile(names[i+1], []byte(block), 0o600))
	}
	for _, name := range names {
		if status, _, stderr := call(t, "validate", name); status != 0 {
			t.Error(stderr)
		}
	}
}

// wantConverted converts a text, and compares the result with a file.
func wantConverted(t *testing.T, text, file string) {
	t.Helper()
	from := filepath.Join(t.TempDir(), "pods.yaml")
	check.Must(t, os.WriteFile(from, []byte(text), 0o600))
	status, stdout, stderr := call(t, "convert", "-f", from)
	if status != 0 {
		t.Fatal(stderr)
	}
	want, err := os.ReadFile(file)
	check.Must(t, err)
	if diff := cmp.Diff(strings.TrimSpace(string(want)), strings.TrimSpace(stdout)); diff != "" {
		t.Errorf("converted (-%s +got):\n%s", file, diff)
	}
}

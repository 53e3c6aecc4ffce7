// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestReadBootTime: the host's tree comes before this kernel, and a file without the line says nothing.
func TestReadBootTime(t *testing.T) {
	root := t.TempDir()
	if got, err := readBootTime(root); err != nil || got.IsZero() || got.After(time.Now()) {
		t.Errorf("of this kernel: %v, %v", got, err)
	}
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]time.Time{
		"cpu  1 2 3\nbtime 1700000000\nprocesses 7\n": time.Unix(1700000000, 0), "cpu  1 2 3\n": {},
	} {
		if err := os.WriteFile(filepath.Join(root, "proc/stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readBootTime(root); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/stat"), []byte("btime soon\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readBootTime(root); err == nil {
		t.Error("took a time that is none")
	}
}

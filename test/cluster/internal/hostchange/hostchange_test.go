// SPDX-License-Identifier: Apache-2.0

package hostchange

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLastClusterPutsThingsBack(t *testing.T) {
	root := t.TempDir()
	existing := filepath.Join(root, "existing")
	if err := os.Mkdir(existing, 0o755); err != nil {
		t.Fatal(err)
	}
	setting := filepath.Join(root, "setting")
	write(t, setting, "before")
	r := Record{
		File: filepath.Join(root, "run", "host.json"), Settings: []string{setting},
		Alive: func(id string) bool { return id != "dead" },
	}
	for _, id := range []string{"dead", "a", "b"} {
		if err := r.Enter(id, []string{existing, filepath.Join(root, "new", "deep")}); err != nil {
			t.Fatal(err)
		}
		write(t, setting, id)
	}
	if err := r.Leave("a"); err != nil {
		t.Fatal(err)
	}
	if !r.Has("b") || r.Has("a") || !exists(filepath.Join(root, "new", "deep")) {
		t.Error("a left, so b alone must be noted and its directory stay")
	}
	if err := r.Leave("b"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(setting); err != nil || string(got) != "before" {
		t.Errorf("setting is %q, %v, want what it was before the first cluster", got, err)
	}
	if exists(filepath.Join(root, "new")) || exists(r.File) || !exists(existing) {
		t.Error("the last cluster must remove what was created, and only that")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

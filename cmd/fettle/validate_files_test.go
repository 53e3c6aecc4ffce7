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

// TestReadManifests: files, directories and standard input, each file once. What cannot be read hides nothing else.
func TestManifestsIn(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": "b", "a/c.yml": "c", "a/d.json": "d", "a/e.txt": "e", "empty/f.txt": "f"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manifests, err := manifestsIn([]string{
		"-", filepath.Join(dir, "absent.yaml"), dir, filepath.Join(dir, "b.yaml"), filepath.Join(dir, "a", "e.txt"), filepath.Join(dir, "empty"),
	}, strings.NewReader("stdin"))
	var got []string
	for _, m := range manifests {
		got = append(got, string(m.Text))
	}
	if diff := cmp.Diff([]string{"stdin", "c", "d", "b", "e"}, got); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
	check.WantErr(t, err, nil, "absent.yaml", "empty has no file *.yaml")
}

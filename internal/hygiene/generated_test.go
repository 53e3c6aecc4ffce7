// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// controllerGen finds the generator that make has built, or builds it.
func controllerGen(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join(root, ".cache/tools/controller-gen"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err == nil {
		return built
	}
	out := filepath.Join(t.TempDir(), "controller-gen")
	command := exec.Command("go", "build", "-C", filepath.Join(root, "tools/generate"), "-o", out, "tool")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build controller-gen: %v\n%s", err, output)
	}
	return out
}

// TestGeneratedFilesAreCurrent generates into a temporary directory and compares, so that a dirty working tree does not matter.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	deepcopy, crds := t.TempDir(), t.TempDir()
	command := exec.Command(controllerGen(t), "object", "output:object:dir="+deepcopy,
		"crd", "output:crd:dir="+crds, "paths=./api/...")
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("controller-gen: %v\n%s", err, output)
	}
	compare(t, deepcopy, "api/v1alpha1", "zz_generated.*")
	compare(t, crds, "deployments/crds", "*.yaml")
}

// compare wants the files of a directory that match the pattern to be those that were generated: the same names, the same bytes.
func compare(t *testing.T, generated, committed, pattern string) {
	t.Helper()
	contents := func(dir string) map[string]string {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		result := map[string]string{}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			result[filepath.Base(name)] = string(content)
		}
		return result
	}
	if diff := cmp.Diff(contents(generated), contents(filepath.Join(root, committed))); diff != "" {
		t.Errorf("%s is not what controller-gen makes of api: run make generate (-want +got):\n%s", committed, diff)
	}
}

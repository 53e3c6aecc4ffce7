// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// authorities is the package that gives a program the public certificate authorities, by being imported.
const authorities = "golang.org/x/crypto/x509roots/fallback"

// imported lists, for each directory, what the Go files in it import that are no tests.
func imported(t *testing.T) map[string][]string {
	t.Helper()
	result := map[string][]string{}
	for _, file := range goFiles(t) {
		if !file.test {
			result[file.dir] = append(result[file.dir], file.imports()...)
		}
	}
	return result
}

// reaches says whether a directory's package imports the other, or one that does.
func reaches(imports map[string][]string, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(imports[from], func(name string) bool {
		dir, ours := strings.CutPrefix(name, modulePath+"/")
		return ours && reaches(imports, dir, to, seen)
	})
}

// TestPublicAuthorities: the images have no files at all beside the programs, so a program that speaks to registries brings the
// authorities that it believes. Public registries would not be believed without, and no test can ask one.
func TestPublicAuthorities(t *testing.T) {
	imports := imported(t)
	var with []string
	for dir := range imports {
		if path.Dir(dir) != "cmd" || !reaches(imports, dir, "pkg/artifact/registry", map[string]bool{}) {
			continue
		}
		with = append(with, path.Base(dir))
		if !slices.Contains(imports[dir], authorities) {
			t.Errorf("%s speaks to registries: its main must import %s", dir, authorities)
		}
	}
	slices.Sort(with)
	if want := []string{"fettle", "fettle-controller", "fettle-kubeletplugin"}; !slices.Equal(with, want) {
		t.Errorf("programs that speak to registries: %q, want %q", with, want)
	}
}

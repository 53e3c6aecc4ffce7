// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestArchitectureNamesPackages: docs/design/architecture.md says of every shipped package what it is for.
func TestArchitectureNamesPackages(t *testing.T) {
	text := read(t, "docs/design/architecture.md")
	shipped := []string{"api", "pkg", "cdi", "kubeletplugin", "controller", "cmd"}
	dirs := map[string]bool{}
	for _, f := range goFiles(t) {
		top, _, _ := strings.Cut(f.dir, "/")
		if !f.test && slices.Contains(shipped, top) && !strings.Contains(f.dir, "testdata") {
			dirs[f.dir] = true
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		name := dir
		switch top, rest, _ := strings.Cut(dir, "/"); {
		case top == "cmd":
			name = path.Base(dir)
		case rest != "" && top != "api":
			name = rest
		}
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/design/architecture.md does not name %s, as `%s`", dir, name)
		}
	}
}

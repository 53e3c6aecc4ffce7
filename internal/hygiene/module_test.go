// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// dependenciesPage has a line with a reason for each direct dependency.
const dependenciesPage = "docs/design/dependencies.md"

// modules parses every go.mod of the repository, by its path.
func modules(t *testing.T) map[string]*modfile.File {
	t.Helper()
	result := map[string]*modfile.File{}
	for _, name := range files(t) {
		if path.Base(name) != "go.mod" {
			continue
		}
		module, err := modfile.Parse(name, []byte(read(t, name)), nil)
		if err != nil {
			t.Fatal(err)
		}
		result[name] = module
	}
	return result
}

// direct lists what a module asks for itself: requirements without "// indirect", and the modules of its tools.
func direct(module *modfile.File) []string {
	var result []string
	for _, require := range module.Require {
		tool := slices.ContainsFunc(module.Tool, func(t *modfile.Tool) bool { return within(t.Path, require.Mod.Path) })
		if !require.Indirect || tool {
			result = append(result, require.Mod.Path)
		}
	}
	slices.Sort(result)
	return result
}

// reasons reads the page: a line such as "- `k8s.io/api`: reason", under a heading that names the go.mod.
func reasons(page string) map[string][]string {
	result, section := map[string][]string{}, ""
	for line := range strings.Lines(page) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.Trim(strings.TrimSpace(heading), "`")
		}
		item, ok := strings.CutPrefix(line, "- `")
		if !ok {
			continue
		}
		name, reason, ok := strings.Cut(item, "`: ")
		if ok && strings.TrimSpace(reason) != "" {
			result[section] = append(result[section], name)
		}
	}
	return result
}

func TestDependenciesHaveReasons(t *testing.T) {
	listed := reasons(read(t, dependenciesPage))
	for name, module := range modules(t) {
		for _, dependency := range direct(module) {
			if !slices.Contains(listed[name], dependency) {
				t.Errorf("%s requires %s: add \"- `%s`: reason\" under \"## `%s`\" in %s", name, dependency, dependency, name, dependenciesPage)
			}
		}
		for _, dependency := range listed[name] {
			if !slices.Contains(direct(module), dependency) {
				t.Errorf("%s lists %s under %s, which does not require it directly: remove the line", dependenciesPage, dependency, name)
			}
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("%s has a section %s: there is no such go.mod", dependenciesPage, name)
	}
}

func TestNoReplace(t *testing.T) {
	root := modules(t)["go.mod"]
	for _, replace := range root.Replace {
		t.Errorf("go.mod replaces %s: who imports the module would not see that", replace.Old.Path)
	}
}

// TestTidy runs where make verify asks for it, since it may need the network.
func TestTidy(t *testing.T) {
	if os.Getenv("FETTLE_VERIFY") == "" {
		t.Skip("make verify runs it")
	}
	for name := range modules(t) {
		command := exec.Command("go", "mod", "tidy", "-diff")
		command.Dir = filepath.Join(root, path.Dir(name))
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s is not tidy (%v): run go mod tidy there\n%s", name, err, output)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// starters are the files that start programs on nodes, and what confines them there. pkg/confine refuses a program without Paths.
func starters() map[string]string {
	return map[string]string{
		"pkg/confine/child.go":         "confine.Child itself",
		"pkg/confine/mps.go":           "confine.MPSDaemon itself",
		"pkg/confine/process.go":       "it executes this program again, confined",
		"pkg/nvml/query.go":            "confine.Child",
		"pkg/nvml/watch.go":            "confine.Child",
		"pkg/tool/tool.go":             "confine.Child",
		"pkg/mps/supervise/process.go": "confine.MPSDaemon",
		"pkg/hook/confine.go":          "namespaces of its own, and what docs/design/hook.md says",
		"pkg/hook/become.go":           "it executes the host's ldconfig, after it confined itself",
	}
}

// TestTakenOverProgramIsConfined: a program that the product starts is one of a short list, and each says what confines it. An attacker who
// takes over a program that somebody adds without that has all that the plugin has.
func TestTakenOverProgramIsConfined(t *testing.T) {
	starts := map[string][]string{
		"os/exec":                  {"Command", "CommandContext", "Cmd"},
		"os":                       {"StartProcess"},
		"syscall":                  {"Exec", "ForkExec", "StartProcess"},
		"golang.org/x/sys/unix":    {"Exec", "SYS_EXECVE", "SYS_EXECVEAT"},
		"golang.org/x/sys/execabs": {"Command", "CommandContext"},
	}
	used := map[string]bool{}
	for _, file := range goFiles(t) {
		if file.test || within(file.path, "test") || within(file.path, "tools") || within(file.path, "demo") {
			continue
		}
		names := map[string][]string{}
		for _, spec := range file.syntax.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			name := path.Base(imported)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = append(names[name], starts[imported]...)
		}
		ast.Inspect(file.syntax, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, ok := selector.X.(*ast.Ident)
			if !ok || !slices.Contains(names[of.Name], selector.Sel.Name) {
				return true
			}
			if used[file.path] = true; starters()[file.path] == "" {
				t.Errorf("%s:%d: %s.%s: start it by pkg/confine, and say so in starters", file.path, file.line(selector), of.Name, selector.Sel.Name)
			}
			return true
		})
	}
	for file := range starters() {
		if !used[file] {
			t.Errorf("%s starts no program: take it out of starters", file)
		}
	}
}

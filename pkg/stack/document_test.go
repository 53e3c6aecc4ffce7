// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/user", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocument: the stacks of the user's page are valid, and its list has each state.
func TestDocument(t *testing.T) {
	text := page(t, "stack.md")
	stacks := 0
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(block[1], "\nkind: AcceleratorStack\n") {
			continue
		}
		stacks++
		var s v1alpha1.AcceleratorStack
		if err := yaml.UnmarshalStrict([]byte(block[1]), &s); err != nil {
			t.Fatal(err)
		}
		if faults := s.Spec.Validate(field.NewPath("spec")); len(faults) > 0 {
			t.Errorf("%s: %v", s.Name, faults.ToAggregate())
		}
	}
	if stacks == 0 {
		t.Error("the page has no stack")
	}
	for _, state := range v1alpha1.StackStates() {
		if !strings.Contains(text, "\n- `"+string(state)+"` ") {
			t.Errorf("the page's list has no state %s", state)
		}
	}
}

// TestReasons: a page explains each reason for which a node waits.
func TestReasons(t *testing.T) {
	text := page(t, "troubleshooting.md") + page(t, "reference/reasons.md")
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") || strings.HasSuffix(name, "_test.go") {
				return true
			}
			found++
			value, _ := spec.Values[0].(*ast.BasicLit)
			reason, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			well := []string{"Passed", "AllNodesReady", "Settled", "NoNodeFailed", "NotOverruled"}
			for _, w := range well {
				if reason == w {
					return true
				}
			}
			if !strings.Contains(text, "`"+reason+"`") {
				t.Errorf("no page explains %s", reason)
			}
			return true
		})
	}
	if found < 15 {
		t.Errorf("only %d reasons were found", found)
	}
}

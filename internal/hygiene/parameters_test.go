// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// maxParameters is how many parameters a function may have, a context included. What belongs together is a value with a name.
const maxParameters = 5

// TestFunctionsHaveFewParameters counts the parameters of each function outside of tests.
func TestFunctionsHaveFewParameters(t *testing.T) {
	for _, message := range checkParameters(countParameters(goFiles(t))) {
		t.Error(message)
	}
}

// countParameters returns the number of parameters of each function, as folder.Type.Function or folder.Function. Of functions with a body
// for each platform, the largest number counts.
func countParameters(files []goFile) map[string]int {
	counts := map[string]int{}
	for _, f := range files {
		if f.test || f.generated {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := f.dir + "."
			if function.Recv != nil {
				name += receiverType(function.Recv.List[0].Type) + "."
			}
			name += function.Name.Name
			counts[name] = max(counts[name], parameters(function.Type))
		}
	}
	return counts
}

// parameters counts those of a function. One without a name counts too.
func parameters(f *ast.FuncType) (n int) {
	for _, field := range f.Params.List {
		n += max(1, len(field.Names))
	}
	return n
}

// checkParameters returns which functions have too many parameters.
func checkParameters(counts map[string]int) []string {
	return limit{most: maxParameters, of: "parameters", mend: "give what belongs together a type"}.check(counts)
}

// TestPlantedParameters plants functions that have too many parameters.
func TestPlantedParameters(t *testing.T) {
	const five, six = "(a, b int, c, d string, e ...any)", "(a, b int, _ string, d, e bool, f ...any)"
	for name, tt := range map[string]struct {
		source string
		test   bool
		want   []string
	}{
		"as many as may be": {source: "func f" + five + " {}"},
		"one more":          {source: "func f" + six + " {}", want: []string{"pkg/p.f has 6 parameters, want at most 5"}},
		"of a method":       {source: "func (t *T[K]) f" + six + " {}", want: []string{"pkg/p.T.f has 6"}},
		"without names":     {source: "func f(int, int, int, int, int, int) {}", want: []string{"pkg/p.f has 6"}},
		"of a test":         {source: "func f" + six + " {}", test: true},
	} {
		t.Run(name, func(t *testing.T) {
			syntax, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p\n"+tt.source+"\n", 0)
			if err != nil {
				t.Fatal(err)
			}
			got := checkParameters(countParameters([]goFile{{dir: "pkg/p", test: tt.test, syntax: syntax}}))
			if len(got) != len(tt.want) {
				t.Fatalf("found %q, want %q", got, tt.want)
			}
			for i := range got {
				if !strings.Contains(got[i], tt.want[i]) {
					t.Errorf("found %q, want %q", got[i], tt.want[i])
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// maxMethods is how many methods a type may have. A larger one is several types that reach each other's state.
const maxMethods = 40

// TestTypesHaveFewMethods counts the methods of each type outside of tests.
func TestTypesHaveFewMethods(t *testing.T) {
	for _, message := range checkMethods(countMethods(goFiles(t))) {
		t.Error(message)
	}
}

// countMethods returns the number of methods of each type, as folder.Type. A method that has a body for each platform counts once.
func countMethods(files []goFile) map[string]int {
	counts := map[string]int{}
	seen := map[[2]string]bool{}
	for _, f := range files {
		if f.test || f.generated {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Recv == nil {
				continue
			}
			receiver := f.dir + "." + receiverType(function.Recv.List[0].Type)
			if method := [2]string{receiver, function.Name.Name}; !seen[method] {
				seen[method] = true
				counts[receiver]++
			}
		}
	}
	return counts
}

// receiverType returns the name of a receiver's type, without its pointer and type parameters.
func receiverType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverType(e.X)
	case *ast.IndexExpr:
		return receiverType(e.X)
	case *ast.IndexListExpr:
		return receiverType(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// checkMethods returns which types have too many methods.
func checkMethods(counts map[string]int) []string {
	return limit{most: maxMethods, of: "methods", mend: "give a part with state of its own a type of its own"}.check(counts)
}

// limit is how many of something a thing may have.
type limit struct {
	most int
	// of is what is counted, and mend what to do about too many.
	of, mend string
}

// check returns which things have too many.
func (l limit) check(counts map[string]int) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > l.most {
			wrong = append(wrong, fmt.Sprintf("%s has %d %s, want at most %d: %s", name, counts[name], l.of, l.most, l.mend))
		}
	}
	return wrong
}

// TestPlantedMethods plants types that have too many methods.
func TestPlantedMethods(t *testing.T) {
	plant := func(path, receiver string, from, to int) goFile {
		var source strings.Builder
		source.WriteString("package p\n")
		for i := range to - from {
			fmt.Fprintf(&source, "func (r %s) m%d() {}\nfunc f%d() {}\n", receiver, from+i, from+i)
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), path, source.String(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return goFile{dir: "pkg/p", test: strings.HasSuffix(path, "_test.go"), syntax: syntax}
	}
	for name, tt := range map[string]struct {
		files []goFile
		want  []string
	}{
		"as many as may be": {files: []goFile{plant("a.go", "*T", 0, 40)}},
		"one more":          {files: []goFile{plant("a.go", "*T", 0, 41)}, want: []string{"pkg/p.T has 41 methods, want at most 40"}},
		"of two files":      {files: []goFile{plant("a.go", "*T", 0, 30), plant("b.go", "T", 30, 45)}, want: []string{"has 45 methods"}},
		"of two platforms":  {files: []goFile{plant("a_linux.go", "*T", 0, 30), plant("a_other.go", "*T", 0, 30)}},
		"of a test":         {files: []goFile{plant("a.go", "*T", 0, 30), plant("a_test.go", "*T", 30, 60)}},
		"with type parameters": {
			files: []goFile{plant("a.go", "*T[K, V]", 0, 41), plant("b.go", "U[K]", 0, 42)}, want: []string{"p.T has 41", "p.U has 42"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkMethods(countMethods(tt.files))
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

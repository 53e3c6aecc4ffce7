// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// maxNesting is how deep conditions, loops and switches stand within each other. What stands deeper is a function with a name.
const maxNesting = 3

// shipped are the folders whose code is in the images and the command line.
func shipped(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return slices.Contains([]string{"api", "pkg", "cdi", "kubeletplugin", "controller", "cmd"}, top)
}

// TestNestingIsShallow looks at each function that is shipped.
func TestNestingIsShallow(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || f.generated || !shipped(f.dir) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if depth := nesting(bodyOf(n)); depth > maxNesting {
				t.Errorf("%s: nested %d deep, want at most %d: give the inner part a name", f.fileSet.Position(n.Pos()), depth, maxNesting)
			}
			return true
		})
	}
}

// bodyOf returns the body of a function, and an empty one of what is none.
func bodyOf(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body != nil {
			return n.Body
		}
	case *ast.FuncLit:
		return n.Body
	}
	return &ast.BlockStmt{}
}

// nesting returns how deep statements are nested. An else-if is as deep as its if. A function literal counts for itself.
func nesting(node ast.Node) (deepest int) {
	ast.Inspect(node, func(n ast.Node) bool {
		var inner int
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.IfStmt:
			inner = nestingOfIf(n)
		case *ast.ForStmt:
			inner = 1 + nesting(n.Body)
		case *ast.RangeStmt:
			inner = 1 + nesting(n.Body)
		case *ast.SwitchStmt:
			inner = 1 + nesting(n.Body)
		case *ast.TypeSwitchStmt:
			inner = 1 + nesting(n.Body)
		case *ast.SelectStmt:
			inner = 1 + nesting(n.Body)
		default:
			return true
		}
		deepest = max(deepest, inner)
		return false
	})
	return deepest
}

func nestingOfIf(n *ast.IfStmt) int {
	deepest := 1 + nesting(n.Body)
	switch other := n.Else.(type) {
	case *ast.IfStmt:
		deepest = max(deepest, nestingOfIf(other))
	case *ast.BlockStmt:
		deepest = max(deepest, 1+nesting(other))
	}
	return deepest
}

// TestPlantedNesting plants a function that is too deep, and beside it what only looks so.
func TestPlantedNesting(t *testing.T) {
	for body, want := range map[string]int{
		"for range 3 { if a { switch { case b: select { default: } } } }":              4,
		"if a { } else if b { } else if c { for range 3 { } }":                         2,
		"for range 3 { f := func() { for range 3 { if a { } } }; f() }":                1,
		"if a { if b { if c { } } } else { for range 3 { for range 3 { if a { } } } }": 4,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "planted.go", "package p\nfunc f() {"+body+"}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := nesting(file.Decls[0].(*ast.FuncDecl).Body); got != want { //nolint:forcetypeassert // it is one
			t.Errorf("%s: nested %d deep, want %d", body, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// typed is a package with its tests, as far as its names and constants are known. Only our own packages and a few of the standard
// library are imported for it: expressions that need others have no type, and no error is told.
type typed struct {
	files []goFile
	info  *types.Info
	// bubbles are the ranges of source that run only inside of testing/synctest, where no real time passes.
	bubbles []ast.Node
}

// ownImporter reads our own packages from their source, and from the standard library what the rules below name.
type ownImporter struct {
	fset     *token.FileSet
	packages map[string][]goFile // without tests, by directory
	known    map[string]*types.Package
	standard types.Importer
}

// standardPackages are those of the standard library that the rules name.
func standardPackages() []string {
	return []string{"context", "math/rand", "math/rand/v2", "net", "testing", "testing/synctest", "time"}
}

func newOwnImporter(t *testing.T, fset *token.FileSet, all []goFile) *ownImporter {
	t.Helper()
	o := &ownImporter{fset: fset, packages: map[string][]goFile{}, known: map[string]*types.Package{}}
	o.standard = importer.ForCompiler(fset, "gc", exported(t))
	for _, f := range all {
		if !f.test {
			o.packages[f.dir] = append(o.packages[f.dir], f)
		}
	}
	return o
}

// exported gives what the compiler wrote about packages of the standard library.
func exported(t *testing.T) importer.Lookup {
	t.Helper()
	arguments := append([]string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}"}, standardPackages()...)
	out, err := exec.CommandContext(t.Context(), "go", arguments...).Output()
	if err != nil {
		t.Fatalf("go list -export: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return func(name string) (io.ReadCloser, error) { return os.Open(files[name]) }
}

// Import implements types.Importer.
func (o *ownImporter) Import(name string) (*types.Package, error) {
	if slices.Contains(standardPackages(), name) {
		return o.standard.Import(name)
	}
	dir, ours := strings.CutPrefix(name, modulePath+"/")
	if !ours {
		return nil, fmt.Errorf("%s is not looked at", name)
	}
	if known, ok := o.known[name]; ok {
		return known, nil
	}
	config := types.Config{Importer: o, IgnoreFuncBodies: true, FakeImportC: true, Error: func(error) {}}
	p, _ := config.Check(name, o.fset, syntaxOf(o.packages[dir]), nil)
	o.known[name] = p
	return p, nil
}

func syntaxOf(files []goFile) []*ast.File {
	var result []*ast.File
	for _, f := range files {
		result = append(result, f.syntax)
	}
	return result
}

// packagesWithTests gives every directory's package with its tests, and those of its package of tests alone by themselves.
func packagesWithTests(all []goFile) [][]goFile {
	byName := map[string][]goFile{}
	for _, f := range all {
		key := f.dir + " " + f.syntax.Name.Name
		byName[key] = append(byName[key], f)
	}
	var result [][]goFile
	for _, files := range byName {
		if slices.ContainsFunc(files, goFile.checks) {
			result = append(result, files)
		}
	}
	return result
}

// checks says whether a file holds code of tests: its name says so, or it is among the suites, simulators and tools of tests.
func (f goFile) checks() bool {
	return !f.generated && (f.test || within(f.path, "test") || within(f.path, "demo"))
}

func (o *ownImporter) check(files []goFile) *typed {
	p := &typed{files: files, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}}
	config := types.Config{Importer: o, FakeImportC: true, Error: func(error) {}}
	_, _ = config.Check(path.Join(modulePath, files[0].dir), o.fset, syntaxOf(files), p.info)
	p.findBubbles()
	return p
}

// function is the function or method that an expression names, if it is known.
func (p *typed) function(e ast.Expr) *types.Func {
	f, _ := p.object(e).(*types.Func)
	return f
}

// object is what a name stands for, if it is known.
func (p *typed) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if o := p.info.Uses[e]; o != nil {
			return o
		}
		return p.info.Defs[e]
	case *ast.SelectorExpr:
		return p.info.Uses[e.Sel]
	case *ast.IndexExpr:
		return p.object(e.X)
	}
	return nil
}

// calls says whether an expression calls a function of a package of the standard library, such as "time.Now".
func (p *typed) calls(e ast.Expr, names ...string) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return false
	}
	f := p.function(call.Fun)
	if f == nil || f.Pkg() == nil {
		return false
	}
	return slices.Contains(names, f.Pkg().Path()+"."+f.Name()) && f.Signature().Recv() == nil
}

// duration is the value of a constant of type time.Duration. What makes a limit longer on a slow machine does not change it.
func (p *typed) duration(e ast.Expr) (int64, bool) {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok && nameOf(call.Fun) == "Patient" && len(call.Args) == 1 {
		e = call.Args[0]
	}
	v := p.info.Types[e]
	if v.Value == nil || !isDuration(v.Type) {
		return 0, false
	}
	return constant.Int64Val(constant.ToInt(v.Value))
}

func isDuration(t types.Type) bool { return t != nil && t.String() == "time.Duration" }

// nameOf is the last part of the name of what is called.
func nameOf(e ast.Expr) string {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// inBubble says whether a node runs only inside of testing/synctest.
func (p *typed) inBubble(n ast.Node) bool {
	return slices.ContainsFunc(p.bubbles, func(b ast.Node) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() })
}

// findBubbles finds what is handed to synctest.Test, directly or by a function that hands its parameter on, and the functions that are only
// called from there.
func (p *typed) findBubbles() {
	used, declared := map[types.Object][]*ast.Ident{}, map[types.Object]*ast.FuncDecl{}
	for ident, o := range p.info.Uses {
		if _, ok := o.(*types.Func); ok {
			used[o] = append(used[o], ident)
		}
	}
	enters := map[types.Object]map[int]bool{} // the parameters of functions that they call in a bubble
	var calls []*ast.CallExpr
	for _, f := range p.files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				declared[p.info.Defs[n.Name]] = n
			case *ast.CallExpr:
				calls = append(calls, n)
			}
			return true
		})
	}
	for size := -1; size != len(p.bubbles)+len(enters); {
		size = len(p.bubbles) + len(enters)
		for _, call := range calls {
			for i, argument := range call.Args {
				if !p.calls(call, "testing/synctest.Test") && !enters[p.object(call.Fun)][i] {
					continue
				}
				if literal, ok := argument.(*ast.FuncLit); ok && !p.inBubble(literal) {
					p.bubbles = append(p.bubbles, literal)
				}
			}
		}
		for o, f := range declared {
			if f.Body == nil || p.inBubble(f.Body) {
				continue
			}
			if uses := used[o]; len(uses) > 0 && !slices.ContainsFunc(uses, func(i *ast.Ident) bool { return !p.inBubble(i) }) {
				p.bubbles = append(p.bubbles, f.Body)
			}
			if enters[o] == nil {
				if entering := p.entering(f); len(entering) > 0 {
					enters[o] = entering
				}
			}
		}
	}
}

// entering lists the parameters of a function that it names only in a bubble: the functions among them run there.
func (p *typed) entering(f *ast.FuncDecl) map[int]bool {
	result := map[int]bool{}
	index := 0
	for _, field := range f.Type.Params.List {
		_, callable := field.Type.(*ast.FuncType)
		for _, name := range field.Names {
			if callable && p.onlyInBubbles(f.Body, p.info.Defs[name]) {
				result[index] = true
			}
			index++
		}
	}
	return result
}

// onlyInBubbles says whether something is named below a node, and only in bubbles.
func (p *typed) onlyInBubbles(n ast.Node, o types.Object) bool {
	inside, outside := false, false
	ast.Inspect(n, func(n ast.Node) bool {
		if ident, ok := n.(*ast.Ident); ok && p.info.Uses[ident] == o {
			inside, outside = inside || p.inBubble(ident), outside || !p.inBubble(ident)
		}
		return true
	})
	return inside && !outside
}

// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// comment is a Go comment, apart: its text in one line, and the markers below it, such as +kubebuilder:validation:MaxItems=8.
type comment struct {
	text    string
	markers []string
}

// value is a constant of a named type.
type value struct{ literal, text string }

// member is a field of a struct as JSON has it.
type member struct {
	name, kind string
	optional   bool
	comment
}

// declared is a type of the API.
type declared struct {
	name   string
	fields []member
	inline []string
	values []value
	alias  string
	comment
}

func commentOf(groups ...*ast.CommentGroup) comment {
	var c comment
	for _, group := range groups {
		if group == nil {
			continue
		}
		var words []string
		for _, line := range group.List {
			text := strings.TrimSpace(strings.TrimPrefix(line.Text, "//"))
			if strings.HasPrefix(text, "+") {
				c.markers = append(c.markers, strings.TrimPrefix(text, "+"))
			} else if text != "" {
				words = append(words, text)
			}
		}
		c.text = strings.TrimSpace(c.text + " " + strings.Join(words, " "))
	}
	return c
}

// marker returns what a marker says, such as 8 for kubebuilder:validation:MaxItems.
func (c comment) marker(name string) (string, bool) {
	for _, m := range c.markers {
		if m == name {
			return "", true
		}
		if said, ok := strings.CutPrefix(m, name+"="); ok {
			return strings.Trim(said, `"`+"`"), true
		}
		if said, ok := strings.CutPrefix(m, name+":"); ok {
			return said, true
		}
	}
	return "", false
}

// typesOf reads the types of a package, and the constants of its named types.
func typesOf(t *testing.T, dir string) map[string]*declared {
	t.Helper()
	types, values := map[string]*declared{}, map[string][]value{}
	for _, file := range filesOf(t, dir) {
		for _, d := range file.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					types[spec.Name.Name] = typeOf(general, spec)
				case *ast.ValueSpec:
					if named, ok := spec.Type.(*ast.Ident); ok && general.Tok == token.CONST {
						values[named.Name] = append(values[named.Name], valuesOf(spec)...)
					}
				}
			}
		}
	}
	for name, d := range types {
		d.values = values[name]
	}
	return types
}

// filesOf reads the Go files of a directory that are no tests and not generated.
func filesOf(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	check.Must(t, err)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(filepath.Base(path), "zz_generated") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		check.Must(t, err)
		files = append(files, file)
	}
	return files
}

func valuesOf(spec *ast.ValueSpec) []value {
	var found []value
	for i, name := range spec.Names {
		if i >= len(spec.Values) {
			continue
		}
		literal, ok := spec.Values[i].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		text, _ := strconv.Unquote(literal.Value)
		found = append(found, value{text, ownText(name.Name, commentOf(spec.Doc, spec.Comment).text)})
	}
	return found
}

// ownText takes the constant's name from the beginning of its comment.
func ownText(name, text string) string {
	text, _ = strings.CutPrefix(text, name)
	return strings.TrimLeft(text, ": ")
}

func typeOf(general *ast.GenDecl, spec *ast.TypeSpec) *declared {
	d := &declared{name: spec.Name.Name, comment: commentOf(general.Doc, spec.Doc)}
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		d.alias = kindOf(spec.Type)
		return d
	}
	for _, f := range structure.Fields.List {
		tag := ""
		if f.Tag != nil {
			tag = reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
		}
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case name == "-" || name == "metadata" || tag == "":
		case name == "":
			d.inline = append(d.inline, kindOf(f.Type))
		default:
			m := member{name: name, kind: kindOf(f.Type), comment: commentOf(f.Doc, f.Comment)}
			if _, m.optional = m.marker("optional"); strings.Contains(options, "omit") {
				m.optional = true
			}
			d.fields = append(d.fields, m)
		}
	}
	return d
}

// kindOf is a Go type as text, without pointers: []string, map[string]string, Duration, GPUSharing.
func kindOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return kindOf(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.ArrayType:
		return "[]" + kindOf(e.Elt)
	case *ast.MapType:
		return "map[" + kindOf(e.Key) + "]" + kindOf(e.Value)
	}
	return ""
}

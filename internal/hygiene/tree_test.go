// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// root is the repository, relative to this package.
const root = "../.."

// modulePath is the root module's.
const modulePath = "github.com/fettle-dev/fettle"

// goFile is one parsed Go file. Its names are relative to the repository, with slashes.
type goFile struct {
	path, dir string
	test      bool
	generated bool
	content   string
	syntax    *ast.File
	fileSet   *token.FileSet
}

// line gives the position of a node for a message.
func (f goFile) line(node ast.Node) int { return f.fileSet.Position(node.Pos()).Line }

// imports lists the import paths of a file.
func (f goFile) imports() []string {
	var result []string
	for _, spec := range f.syntax.Imports {
		result = append(result, strings.Trim(spec.Path.Value, `"`))
	}
	return result
}

// files lists every file of the working tree that belongs to the project, sorted: not Git's own, nothing built, no directory that
// Git is told to ignore.
func files(t *testing.T) []string {
	t.Helper()
	ignored := map[string]bool{".git": true, ".cache": true, "bin": true, "dist": true, "shared": true}
	var result []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() && ignored[relative] {
			return fs.SkipDir
		}
		if entry.Type().IsRegular() {
			result = append(result, filepath.ToSlash(relative))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list the repository: %v", err)
	}
	return result
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// goFiles parses every Go file of the repository, those of nested modules included. Build tags do not matter.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var result []goFile
	fileSet := token.NewFileSet()
	for _, name := range files(t) {
		if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		content := read(t, name)
		syntax, err := parser.ParseFile(fileSet, name, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		result = append(result, goFile{
			path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax),
			content: content, syntax: syntax, fileSet: fileSet,
		})
	}
	return result
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

// namedTest is a test that a document names: `engine.TestX`, or `kubeletplugin.TestAPI/publish` with a subtest.
var namedTest = regexp.MustCompile("`([a-z0-9-]+)\\.(Test[A-Za-z0-9]+)(?:/([A-Za-z0-9]+))?`")

// TestNamedTestsExist: a test that a document names as the proof of something is there. The package is the last part of its directory.
func TestNamedTestsExist(t *testing.T) {
	tests := map[string][]goFile{}
	for _, f := range goFiles(t) {
		if !f.test {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil {
				name := path.Base(f.dir) + "." + function.Name.Name
				tests[name] = append(tests[name], f)
			}
		}
	}
	for _, document := range []string{"docs/design/testing.md", "docs/design/stack.md"} {
		named := namedTest.FindAllStringSubmatch(read(t, document), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", document)
		}
		for _, match := range named {
			found := false
			for _, f := range tests[match[1]+"."+match[2]] {
				found = found || match[3] == "" || strings.Contains(f.content, `.Run("`+match[3]+`"`)
			}
			if !found {
				t.Errorf("%s names %s, which is not there", document, match[0])
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package hygiene

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// header begins every Go file that a person wrote.
const header = "// SPDX-License-Identifier: Apache-2.0\n\n"

func TestLicenceHeader(t *testing.T) {
	for _, file := range goFiles(t) {
		if !file.generated && !strings.HasPrefix(file.content, header) {
			t.Errorf("%s: want the first line %q and then an empty one", file.path, strings.TrimSpace(header))
		}
	}
}

func TestPackageDocs(t *testing.T) {
	documented, packages := map[string]bool{}, map[string]string{}
	for _, file := range goFiles(t) {
		if file.test {
			continue
		}
		packages[file.dir] = file.syntax.Name.Name
		documented[file.dir] = documented[file.dir] || file.syntax.Doc.Text() != ""
	}
	for dir, name := range packages {
		if !documented[dir] {
			t.Errorf("%s: package %s has no doc comment: say in one sentence what it is for, above one package clause", dir, name)
		}
	}
}

func TestPackageNames(t *testing.T) {
	vague := []string{"util", "utils", "common", "helper", "helpers", "consts", "types", "misc", "base"}
	for _, file := range goFiles(t) {
		if slices.Contains(vague, file.syntax.Name.Name) {
			t.Errorf("%s: package %s says nothing: name the noun, or put the code beside its one caller", file.path, file.syntax.Name.Name)
		}
	}
}

// TestParentOfAChildStays: a child with a Pdeathsig is killed when the thread ends that started it, and Go ends a thread with the goroutine
// that locked it. So who starts such a child keeps the thread until the child has ended.
func TestParentOfAChildStays(t *testing.T) {
	keeps := regexp.MustCompile(`runtime\.LockOSThread\(\)|\.ConfineThread\(\)|confine\.MPSDaemon|check\.StartChild\(`)
	for _, file := range goFiles(t) {
		if strings.Contains(file.content, "Pdeathsig"+":") && !keeps.MatchString(file.content) {
			t.Errorf("%s: a child has a Pdeathsig, and nothing keeps the thread that starts it: see check.StartChild", file.path)
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, file := range goFiles(t) {
		for _, declaration := range file.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if ok && function.Recv == nil && function.Name.Name == "init" {
				t.Errorf("%s:%d: init runs without being asked: call a function from main", file.path, file.line(function))
			}
		}
	}
}

// sysExceptions are the places beside pkg/sysfs that may spell a path of the kernel's sys directory, each with its reason.
func sysExceptions() map[string]string {
	return map[string]string{
		"pkg/sysfs":                  "it is the one place that knows where sys lies",
		"pkg/sim":                    "it makes the trees that pkg/sysfs reads",
		"api/mountpath/mountpath.go": "it names paths inside a container that may not be covered by a mount",
		"pkg/preset/paths.go":        "it names directories of a node that no namespace may have",
		"test":                       "it sets machines up",
		"internal/hygiene":           "it looks for them",
	}
}

// sysPath says whether a string is a path of the kernel's sys directory.
func sysPath(s string) bool {
	return s == "/sys" || strings.HasPrefix(s, "/sys/") || strings.HasPrefix(s, "sys/")
}

func TestOnlySysfsKnowsSys(t *testing.T) {
	for _, file := range goFiles(t) {
		exempt := file.test
		for place := range sysExceptions() {
			exempt = exempt || within(file.path, place)
		}
		if exempt {
			continue
		}
		ast.Inspect(file.syntax, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if value, err := strconv.Unquote(literal.Value); err == nil && sysPath(value) {
				t.Errorf("%s:%d: %s: use a path that pkg/sysfs exports", file.path, file.line(literal), literal.Value)
			}
			return true
		})
	}
}

// maxLines bounds a function outside tests.
const maxLines = 80

// measured is the length of one function, from its first line to its closing brace.
type measured struct {
	name  string
	lines int
}

func TestFunctionLength(t *testing.T) {
	var functions []measured
	for _, file := range goFiles(t) {
		if file.test || file.generated {
			continue
		}
		for _, declaration := range file.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := file.fileSet.Position(function.End()).Line - file.line(function) + 1
			functions = append(functions, measured{fmt.Sprintf("%s:%d %s", file.path, file.line(function), function.Name.Name), lines})
		}
	}
	slices.SortFunc(functions, func(a, b measured) int {
		return cmp.Or(cmp.Compare(b.lines, a.lines), cmp.Compare(a.name, b.name))
	})
	for i, f := range functions {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines, want at most %d", f.name, f.lines, maxLines)
		}
		if i < 10 {
			t.Logf("%3d lines %s", f.lines, f.name)
		}
	}
}

// private is a path that only exists where somebody worked: the directory of a checkout or of the module cache.
var private = regexp.MustCompile(`(?:^|[^\w./})-])/(?:work/(?:main|shared|\.)|root/go/)`)

func TestNoPrivatePaths(t *testing.T) {
	binary := []string{".sum", ".tar", ".gz", ".png"}
	for _, name := range files(t) {
		if slices.Contains(binary, path.Ext(name)) || within(name, "internal/hygiene") {
			continue
		}
		for i, line := range strings.Split(read(t, name), "\n") {
			if found := private.FindString(line); found != "" {
				t.Errorf("%s:%d names %q, which is not part of the project", name, i+1, found)
			}
		}
	}
}

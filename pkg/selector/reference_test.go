// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestReference: the page of attributes and capacities has each name with its type and what its comment says. -update writes it.
func TestReference(t *testing.T) {
	own, amounts := newTable(published())[v1alpha1.DriverName], newTable(capacities())[v1alpha1.DriverName]
	var out strings.Builder
	out.WriteString("<!-- Made from the code by: go test ./pkg/selector -run TestReference -update -->\n\n" +
		"# Attributes of devices\n\nWhat each is. [Attributes](../attributes.md) has how to select by them, and which devices have which.\n")
	written, before := 0, ""
	for _, section := range namesOfDevice(t) {
		for _, n := range section {
			of, found := own[n.value]
			if !found {
				of, found = amounts[n.value]
			}
			if !found {
				t.Errorf("%s is in no table", n.value)
			}
			if written++; n.heading != "" {
				fmt.Fprintf(&out, "\n## %s\n\n", n.heading)
			}
			if n.heading == "" && n.text == before { // one comment for both
				fmt.Fprintf(&out, "- **`%s`** (%s). See the one before.\n", n.value, of)
				continue
			}
			before = n.text
			fmt.Fprintf(&out, "- **`%s`** (%s). %s\n", n.value, of, n.text)
		}
	}
	if want := len(own) + len(amounts); written != want {
		t.Errorf("the page has %d names, the tables have %d", written, want)
	}
	check.Golden(t, "../../docs/user/reference/attributes.md", out.String())
}

// ofAttribute matches the names of such constants.
var ofAttribute = regexp.MustCompile(`\b(?:Attribute|Capacity)\w+`)

// attributeName is a constant of package device: its value, and what its comment says.
type attributeName struct{ heading, value, text string }

// namesOfDevice lists the names of attributes and capacities, by the declaration that has them, whose comment is the heading.
func namesOfDevice(t *testing.T) (sections [][]attributeName) {
	t.Helper()
	paths, err := filepath.Glob("../device/*.go")
	check.Must(t, err)
	constant := map[string]string{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		check.Must(t, err)
		for _, d := range file.Decls {
			if declaration, ok := d.(*ast.GenDecl); ok && declaration.Tok == token.CONST {
				if section := namesOf(t, declaration, constant); len(section) > 0 {
					sections = append(sections, section)
				}
			}
		}
	}
	for _, section := range sections {
		for i := range section {
			section[i].text = ofAttribute.ReplaceAllStringFunc(section[i].text, func(name string) string {
				if value, ok := constant[name]; ok {
					return "`" + value + "`"
				}
				return name
			})
		}
	}
	return sections
}

// namesOf lists the names of one declaration. A constant without a comment shares that of the one before it.
func namesOf(t *testing.T, declaration *ast.GenDecl, constant map[string]string) (section []attributeName) {
	t.Helper()
	text := ""
	for _, s := range declaration.Specs {
		spec, ok := s.(*ast.ValueSpec)
		if !ok || !ofAttribute.MatchString(spec.Names[0].Name) || len(spec.Values) != 1 {
			continue
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			continue
		}
		value, err := strconv.Unquote(literal.Value)
		check.Must(t, err)
		if spec.Doc != nil {
			text = strings.NewReplacer("_", `\_`, "*", `\*`).Replace(strings.Join(strings.Fields(spec.Doc.Text()), " "))
		}
		constant[spec.Names[0].Name] = value
		n := attributeName{value: value, text: text}
		if len(section) == 0 {
			first, _, _ := strings.Cut(strings.Join(strings.Fields(declaration.Doc.Text()), " "), ".")
			n.heading = first
		}
		section = append(section, n)
	}
	return section
}

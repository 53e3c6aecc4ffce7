// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func definitions(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := fs.Glob(Files, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	var out []apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		data, err := Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, definition)
	}
	return out
}

// TestColumns: every column of kubectl is a field of the schema that has one value. kubectl prints a list or an object as raw JSON, and
// nothing for a field that is misspelt.
func TestColumns(t *testing.T) {
	filter := regexp.MustCompile(`\[[^]]*\]`)
	for _, d := range definitions(t) {
		for _, version := range d.Spec.Versions {
			for _, column := range version.AdditionalPrinterColumns {
				if strings.HasPrefix(column.JSONPath, ".metadata.") {
					continue
				}
				at := version.Schema.OpenAPIV3Schema
				for _, name := range strings.Split(strings.TrimPrefix(filter.ReplaceAllString(column.JSONPath, "[]"), "."), ".") {
					name, element := strings.CutSuffix(name, "[]")
					next, known := at.Properties[name]
					if !known {
						t.Fatalf("%s, column %s: %s has no field %s", d.Spec.Names.Kind, column.Name, column.JSONPath, name)
					}
					at = &next
					if element {
						at = at.Items.Schema
					}
				}
				if !slices.Contains([]string{"string", "integer", "number", "boolean"}, at.Type) {
					t.Errorf("%s, column %s: %s is of type %s, which kubectl prints as JSON", d.Spec.Names.Kind, column.Name, column.JSONPath, at.Type)
				}
			}
		}
	}
}

// columnsHead is a first line of kubectl get in a page.
var columnsHead = regexp.MustCompile(`(?m)^ *(NAME(?: {2,}[A-Za-z]\S*(?: [A-Z]\S*)*)+ {2,}AGE(?: {2,}[A-Za-z].*)?)$`)

// TestColumnsOfPages: the columns of kubectl get on pages are those of one of our kinds, with or without -o wide.
func TestColumnsOfPages(t *testing.T) {
	var known []string
	for _, d := range definitions(t) {
		for _, version := range d.Spec.Versions {
			narrow, wide := []string{"NAME"}, []string{"NAME"}
			for _, column := range version.AdditionalPrinterColumns {
				wide = append(wide, strings.ToUpper(column.Name))
				if column.Priority == 0 {
					narrow = append(narrow, strings.ToUpper(column.Name))
				}
			}
			known = append(known, strings.Join(narrow, "|"), strings.Join(wide, "|"))
		}
	}
	seen, gap := 0, regexp.MustCompile(` {2,}`)
	paths, err := filepath.Glob("../../docs/user/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range columnsHead.FindAllStringSubmatch(string(text), -1) {
			head := strings.ToUpper(strings.Join(gap.Split(match[1], -1), "|"))
			if seen++; !slices.Contains(known, head) && !strings.HasPrefix(head, "NAME|READY|") && !strings.HasPrefix(head, "NAME|STATE|") {
				t.Errorf("%s: no kind has the columns %s, but %s", path, head, strings.Join(known, ", "))
			}
		}
	}
	if seen < 3 {
		t.Errorf("%d tables of kubectl get found; the test looks in the wrong place", seen)
	}
}

// TestShortNames: kubectl takes a short name as it is written, so one that people read as a word has its plural, too.
func TestShortNames(t *testing.T) {
	abbreviations := []string{"gkc", "cgkc", "trust"}
	for _, d := range definitions(t) {
		names := d.Spec.Names.ShortNames
		for _, name := range names {
			if !strings.HasSuffix(name, "s") && !slices.Contains(abbreviations, name) && !slices.Contains(names, name+"s") {
				t.Errorf("%s: short name %s without %ss", d.Spec.Names.Kind, name, name)
			}
		}
	}
}
